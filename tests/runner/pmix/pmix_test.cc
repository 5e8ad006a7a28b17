// sortie-pmix with real Open MPI programs on several emulated hosts.
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "tests/runner/pmix/emulated_hosts.h"

using namespace sortie;
using namespace sortie::test;
using namespace std::chrono_literals;

namespace {

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
    CHECK(rank.text() == "ok\n");  // and no warnings
  }
}

/// Closes the runner's streams: servers exit by themselves with code 0 and leave no files.
void check_servers_end(EmulatedHosts& hosts) {
  hosts.hang_up();
  for (std::size_t host = 0; host < hosts.count(); ++host) {
    CAPTURE(host);
    const auto status = hosts.server(host).wait(20s);
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

TEST_CASE("3 hosts with 1, 2 and 3 ranks") {
  EmulatedHosts hosts({{0}, {1, 2}, {3, 4, 5}});
  require_servers(hosts);
  REQUIRE(hosts.run(mpi("ring")));
  check_all_ok(hosts);
  check_servers_end(hosts);
}

TEST_CASE("ranks that are not numbered host by host") {
  EmulatedHosts hosts({{0, 3}, {2, 1}});
  require_servers(hosts);
  REQUIRE(hosts.run(mpi("ring")));
  check_all_ok(hosts);
}

TEST_CASE("one host needs no relay") {
  EmulatedHosts hosts({{0, 1, 2}});
  require_servers(hosts);
  REQUIRE(hosts.run(mpi("ring")));
  check_all_ok(hosts);
  CHECK(hosts.fences().empty());
  check_servers_end(hosts);
}

TEST_CASE("one rank alone") {
  EmulatedHosts hosts(std::vector<std::vector<std::uint32_t>>{{0}});
  require_servers(hosts);
  REQUIRE(hosts.run(mpi("ring")));
  check_all_ok(hosts);
}

TEST_CASE("two jobs on the same hosts at the same time") {
  EmulatedHosts hosts({{0, 1}, {2, 3}});
  require_servers(hosts);
  EmulatedHosts others({{0, 1}, {2, 3}});
  others.share_hosts_of(hosts);
  require_servers(others);
  hosts.start_ranks(mpi("threads"));
  others.start_ranks(mpi("threads"));
  const bool ended = hosts.relay_until(
      [&] {
        others.relay_until([] { return false; }, 0ms);
        return hosts.all_ranks_ended() && others.all_ranks_ended();
      },
      60s);
  REQUIRE(ended);
  check_all_ok(hosts);
  check_all_ok(others);
}

TEST_CASE("MPI_THREAD_MULTIPLE, four threads in collectives at once") {
  EmulatedHosts hosts({{0, 1}, {2, 3}});
  require_servers(hosts);
  REQUIRE(hosts.run(mpi("threads")));
  check_all_ok(hosts);
}

TEST_CASE("direct modex: Open MPI asks for what it needs, when it needs it") {
  EmulatedHosts hosts({{0, 1}, {2, 3}});
  require_servers(hosts);
  REQUIRE(hosts.run(mpi("ring"), {{"OMPI_MCA_pmix_base_async_modex", "1"},
                                  {"OMPI_MCA_pmix_base_collect_data", "0"}}));
  check_all_ok(hosts);
  CHECK(hosts.modex_requests() > 0);
}

TEST_CASE("direct modex with a peer that comes late") {
  EmulatedHosts hosts({{0, 1}, {2, 3}});
  require_servers(hosts);
  REQUIRE(hosts.run(mpi("late-peer"), {{"OMPI_MCA_pmix_base_async_modex", "1"},
                                       {"OMPI_MCA_pmix_base_collect_data", "0"}}));
  check_all_ok(hosts);
}

TEST_CASE("a rank that publishes seconds after its neighbour looks for it, async modex asked for") {
  EmulatedHosts hosts({{0, 1}, {2, 3}});
  require_servers(hosts);
  REQUIRE(hosts.run(mpi("late-commit"), {{"OMPI_MCA_pmix_base_async_modex", "1"},
                                         {"OMPI_MCA_pmix_base_collect_data", "0"}}));
  CHECK(hosts.ranks()[3].text() == "late\nok\n");
  for (const std::size_t rank : {0, 1, 2}) CHECK(hosts.ranks()[rank].text() == "ok\n");
}

TEST_CASE("names: published on one host, found on another, taken back") {
  EmulatedHosts hosts({{0, 1}, {2, 3}});
  require_servers(hosts);
  REQUIRE(hosts.run(mpi("names")));
  check_all_ok(hosts);
  check_servers_end(hosts);
}

TEST_CASE("a PMIx client: values fetched from their owner, fences of some ranks") {
  EmulatedHosts hosts({{0, 1, 2}, {3}, {4, 5}, {7, 6}});
  require_servers(hosts);
  REQUIRE(hosts.run({SORTIE_PMIX_PROGRAM}));
  check_all_ok(hosts);
  CHECK(hosts.modex_requests() >= 8);
  CHECK(hosts.fences().at("0,2,4,6#3") == 3);  // the second host has no even rank
  CHECK(hosts.fences().at("0-7#2") == 4);
  check_servers_end(hosts);
}

TEST_CASE("a value that its owner commits after its first commit is waited for") {
  struct Course {
    const char* what;
    const char* key;  // the key requested too early
  };
  for (const Course& course : {Course{"second-commit", "sortie.second"},
                               Course{"timeout", "sortie.never"}, Course{"end", "sortie.never"}}) {
    CAPTURE(course.what);
    EmulatedHosts hosts({{0, 1}, {2}});
    require_servers(hosts);
    const std::filesystem::path go = hosts.tmp_dir(0).parent_path() / "go";
    hosts.start_ranks({SORTIE_PMIX_PROGRAM, course.what}, {{"SORTIE_TEST_GO", go.string()}});
    // The owner continues once it has been asked, or, in the case with a timeout, once that has
    // expired.
    const auto others_ended = [&] {
      return hosts.ranks()[0].process.poll() && hosts.ranks()[1].process.poll();
    };
    REQUIRE(hosts.relay_until(
        [&] {
          if (course.what == std::string_view("timeout")) return others_ended();
          return std::ranges::count(hosts.modex_keys(), course.key) > 0;
        },
        60s));
    CHECK(std::ranges::count(hosts.modex_keys(), course.key) > 0);
    std::ofstream(go).put('x');
    REQUIRE(hosts.relay_until([&] { return hosts.all_ranks_ended(); }, 60s));
    check_all_ok(hosts);
    check_servers_end(hosts);
  }
}

TEST_CASE("MPI_Abort is told, and the rank exits with its status") {
  EmulatedHosts hosts({{0}, {1, 2}});
  require_servers(hosts);
  hosts.start_ranks(mpi("abort"));
  REQUIRE(hosts.relay_until(
      [&] { return !hosts.aborts().empty() && hosts.ranks()[1].process.poll(); }, 60s));
  CHECK(hosts.aborts()[0].rank == 1);
  CHECK(hosts.aborts()[0].status == 7);
  CHECK(hosts.ranks()[1].process.poll()->to_string() == "exit code 7");
  CHECK(hosts.aborts().size() == 1);
  hosts.ranks().clear();
  check_servers_end(hosts);
}

TEST_CASE("MPI_Comm_spawn is refused and does not hang") {
  EmulatedHosts hosts({{0, 1}, {2, 3}});
  require_servers(hosts);
  REQUIRE(hosts.run(mpi("spawn")));
  CHECK(hosts.notices().size() == 4);
  CHECK(hosts.notices().at(0).text.starts_with("MPI_Comm_spawn was refused: Sortie starts all"));
  for (Rank& rank : hosts.ranks()) {
    CAPTURE(rank.text());
    CHECK(rank.process.poll()->to_string() == "exit code 0");
    CHECK(rank.text().find("spawn refused\n") != std::string::npos);
  }
}

TEST_CASE("MPI_Comm_spawn over all ranks is fatal, as any error is by default") {
  EmulatedHosts hosts({{0, 1}, {2, 3}});
  require_servers(hosts);
  hosts.start_ranks(mpi("spawn-world"));
  REQUIRE(hosts.relay_until([&] { return !hosts.aborts().empty(); }, 60s));
  CHECK(hosts.aborts()[0].rank == 0);
  CHECK(hosts.aborts()[0].status != 0);
}

TEST_CASE("a rank that dies leaves its server alive and its shared memory removed") {
  for (const char* what : {"die", "exit"}) {
    CAPTURE(what);
    EmulatedHosts hosts({{0, 1}, {2, 3}});
    require_servers(hosts);
    hosts.start_ranks(mpi(what));
    const std::size_t victim = what == std::string_view("die") ? 3 : 1;
    REQUIRE(
        hosts.relay_until([&] { return hosts.ranks()[victim].process.poll().has_value(); }, 60s));
    hosts.relay_until([] { return false; }, 1500ms);  // libpmix notices the loss after a second
    CHECK(!hosts.server(0).poll());
    CHECK(!hosts.server(1).poll());
    hosts.ranks().clear();  // kills the others with SIGKILL, as a runner does
    hosts.relay_until([&] { return hosts.shm_files(0).empty() && hosts.shm_files(1).empty(); },
                      20s);
    CHECK(fmt::format("{}", fmt::join(hosts.shm_files(0), " ")) == "");
    CHECK(fmt::format("{}", fmt::join(hosts.shm_files(1), " ")) == "");
    check_servers_end(hosts);
  }
}

TEST_CASE("ranks killed at once with the runner: nothing is left in shared memory") {
  EmulatedHosts hosts({{0, 1}, {2, 3}});
  require_servers(hosts);
  hosts.start_ranks(mpi("die"));
  REQUIRE(hosts.relay_until([&] { return hosts.ranks()[3].process.poll().has_value(); }, 60s));
  hosts.ranks().clear();
  check_servers_end(hosts);
  CHECK(fmt::format("{}", fmt::join(hosts.shm_files(0), " ")) == "");
  CHECK(fmt::format("{}", fmt::join(hosts.shm_files(1), " ")) == "");
}

TEST_CASE("servers end while ranks still run") {
  EmulatedHosts hosts({{0, 1}, {2, 3}});
  require_servers(hosts);
  hosts.start_ranks(mpi("die"));
  REQUIRE(hosts.relay_until([&] { return hosts.ranks()[3].process.poll().has_value(); }, 60s));
  check_servers_end(hosts);
}
