// sortie-pmix with real Open MPI programs on several emulated hosts.
#include <doctest/doctest.h>

#include <csignal>

#include "tests/runner/pmix/emulated_hosts.h"

using namespace sortie;
using namespace sortie::test;
using namespace std::chrono_literals;

namespace {

const std::vector<std::string> kMpi = {SORTIE_MPI_PROGRAM};

std::vector<std::string> mpi(const char* what) {
  return {SORTIE_MPI_PROGRAM, what};
}

void require_servers(EmulatedHosts& hosts,
                     const std::vector<std::pair<std::string, std::string>>& env = {}) {
  const auto error = hosts.start_servers(env);
  REQUIRE_MESSAGE(!error, *error);
}

void check_all_ok(EmulatedHosts& hosts) {
  for (Rank& rank : hosts.ranks()) {
    CAPTURE(rank.rank);
    CAPTURE(rank.text());
    REQUIRE(rank.process.poll());
    CHECK(rank.process.poll()->to_string() == "exit code 0");
    CHECK(rank.text() == "ok\n");  // and not one warning beside it
  }
}

/// The runner is gone: servers end by themselves, cleanly, and leave nothing.
void check_servers_end(EmulatedHosts& hosts) {
  hosts.hang_up();
  for (std::size_t host = 0; host < hosts.count(); ++host) {
    CAPTURE(host);
    const auto status = hosts.server(host).wait(2s);
    REQUIRE(status);
    CHECK(status->to_string() == "exit code 0");
    CHECK(std::filesystem::is_empty(hosts.tmp_dir(host)));
  }
}

}  // namespace

TEST_CASE("2 hosts x 2 ranks: ring and allreduce, memory shared within a host only") {
  EmulatedHosts hosts({{0, 1}, {2, 3}});
  require_servers(hosts);
  REQUIRE(hosts.run(mpi("ring")));
  check_all_ok(hosts);
  CHECK(hosts.aborts().empty());
  CHECK(hosts.fences().contains("0-3#1"));
  check_servers_end(hosts);
}
