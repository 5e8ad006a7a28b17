// Benchmark: time of MPI_Init and MPI_Finalize of many ranks with sortie-pmix, and CPU time of the
// servers.
//   pmix_bench HOSTS RANKS_PER_HOST ROUNDS [NAME=VALUE for servers and ranks ...]
// Compare with `mpirun --oversubscribe -n N pmix_test_mpi hello` on the same machine at the same
// time of day.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/runner/pmix/emulated_hosts.h"

using namespace sortie;
using namespace sortie::test;

namespace {

double milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

/// User and system time of a running process, in milliseconds.
double cpu_milliseconds(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0;
  double system = 0;
  fields >> user >> system;
  return (user + system) * 1000 / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr, "usage: {} HOSTS RANKS_PER_HOST ROUNDS [NAME=VALUE ...]\n", argv[0]);
    return 2;
  }
  doctest::Context context;
  context.setAsDefaultForAssertsOutOfTestCases();
  const int num_hosts = std::atoi(argv[1]);
  const int ranks_per_host = std::atoi(argv[2]);
  std::vector<std::pair<std::string, std::string>> env;
  for (int i = 4; i < argc; ++i) {
    const std::string text = argv[i];
    const std::size_t equals = text.find('=');
    env.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  for (int round = 0; round < std::atoi(argv[3]); ++round) {
    std::vector<std::vector<std::uint32_t>> ranks(static_cast<std::size_t>(num_hosts));
    std::uint32_t next = 0;
    for (auto& host : ranks)
      for (int i = 0; i < ranks_per_host; ++i) host.push_back(next++);
    EmulatedHosts hosts(ranks);
    const auto start = Clock::now();
    if (const auto error = hosts.start_servers(env)) {
      fmt::print(stderr, "{}\n", *error);
      return 1;
    }
    const auto ready = Clock::now();
    double cpu_ready = 0;
    for (std::size_t i = 0; i < hosts.count(); ++i)
      cpu_ready += cpu_milliseconds(hosts.server(i).pid());
    if (!hosts.run({SORTIE_MPI_PROGRAM, "hello"}, env)) {
      fmt::print(stderr, "ranks did not end in time\n");
      return 1;
    }
    const auto ended = Clock::now();
    double cpu = 0;
    for (std::size_t i = 0; i < hosts.count(); ++i) cpu += cpu_milliseconds(hosts.server(i).pid());
    for (Rank& rank : hosts.ranks())
      if (!rank.process.poll()->success()) {
        fmt::print(stderr, "rank {}: {}\n{}", rank.rank, rank.process.poll()->to_string(),
                   rank.text());
        return 1;
      }
    fmt::print(
        "{} hosts x {} ranks: servers ready after {:.0f} ms (CPU {:.0f} ms), ranks start to end "
        "{:.0f} ms (CPU of servers {:.0f} ms)\n",
        num_hosts, ranks_per_host, milliseconds(ready - start), cpu_ready,
        milliseconds(ended - ready), cpu - cpu_ready);
  }
  return 0;
}
