// Benchmark: time to connect to N hosts and run `true` on each, and its cost for the client.
//   build/release/bin/bench_ssh_connect [HOSTS] [ROUNDS]
// All hosts are one sshd on loopback, so the wall time is mostly that of sshd.
#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <vector>

#include "tests/launcher/ssh/fixture.h"

using namespace sortie;
using namespace sortie::launcher;
using namespace sortie::launcher::testing;
namespace asio = boost::asio;

namespace {

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

asio::awaitable<std::string> one_host(Transport& transport, std::string host) {
  auto connection = co_await transport.connect(std::move(host));
  if (!connection) co_return connection.error().message;
  auto channel = co_await (*connection)->exec("true");
  if (!channel) co_return channel.error().message;
  auto ran = co_await World::read_all(**channel);
  if (!ran) co_return ran.error().message;
  co_return ran->status.success() ? "" : ran->status.to_string();
}

}  // namespace

int main(int argc, char** argv) {
  const int hosts = argc > 1 ? std::atoi(argv[1]) : 64;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  World world;
  const Sshd server(world.folder / "sshd", world.public_key);
  world.know(server.known_hosts_line());
  fmt::print("{:>6} {:>10} {:>20}\n", "hosts", "wall ms", "client CPU ms/host");
  for (int round = 0; round < rounds; ++round) {
    const auto transport = world.transport();
    int done = 0, failed = 0;
    const double cpu = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < hosts; ++i)
      asio::co_spawn(world.io, one_host(*transport, fmt::format("127.0.0.1:{}", server.port())),
                     [&](std::exception_ptr, std::string error) {
                       ++done;
                       if (!error.empty() && ++failed == 1) fmt::print("{}\n", error);
                     });
    world.io.restart();
    world.io.run_for(120s);
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
    fmt::print("{:>6} {:>10.0f} {:>20.2f}\n", done, wall.count() * 1e3,
               (cpu_seconds() - cpu) * 1e3 / hosts);
    if (failed || done != hosts) return 1;
  }
  return 0;
}
