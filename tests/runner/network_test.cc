// Networks and ports of a host: which are reported, which are leased, and which are free for ranks.
#include "runner/job/network.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>

#include "runner/job/port_lease.h"
#include "tests/support/runner_client.h"

using namespace sortie;
using namespace sortie::runner;
using namespace sortie::test;

namespace {

/// A server socket as rank 0 opens it: SO_REUSEADDR, all addresses. Invalid if the port is in use.
Fd serve(std::uint16_t port) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(port);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 ||
      ::listen(fd.get(), 1) != 0)
    fd.reset();
  return fd;
}

std::vector<std::uint16_t> some_candidates() {
  const std::vector<std::uint16_t> all = port_candidates("32768 60999", "");
  return {all.begin() + 9000, all.begin() + 9050};
}

}  // namespace

TEST_CASE("ports to try lie outside the kernel's range for connections") {
  const auto all = port_candidates("32768\t60999\n", "\n");
  CHECK(all.front() == 20000);
  CHECK(all.back() == 65535);
  CHECK(std::ranges::find(all, 32767) != all.end());
  CHECK(std::ranges::find(all, 32768) == all.end());
  CHECK(std::ranges::find(all, 60999) == all.end());
  CHECK(std::ranges::find(all, 61000) != all.end());
  const auto some = port_candidates("32768 60999", "20000,20002-20004,99999\n");
  CHECK(std::vector<std::uint16_t>(some.begin(), some.begin() + 2) ==
        std::vector<std::uint16_t>{20001, 20005});
  // If the kernel may use all ports, all are candidates except the reserved ones.
  CHECK(port_candidates("1024 65535", "20000").front() == 20001);
  CHECK(port_candidates("", "") == all);
}

TEST_CASE("a leased port is nobody else's, before and after its rank listens there") {
  const auto candidates = some_candidates();
  auto lease = PortLease::take_any(candidates, 7);
  REQUIRE(lease);
  const std::uint16_t port = lease->port();
  CHECK_FALSE(serve(port));
  const auto again = PortLease::take(port);
  REQUIRE_FALSE(again);
  CHECK(again.error().message == "another job of Sortie on this host has it");
  const auto other = PortLease::take_any(candidates, 7);
  REQUIRE(other);
  CHECK(other->port() != port);

  lease->release_port();
  CHECK(lease->port() == port);
  {
    const Fd rank = serve(port);
    CHECK(rank);
    CHECK_FALSE(PortLease::take(port));
  }
  CHECK_FALSE(PortLease::take(port));
  *lease = PortLease();
  CHECK(PortLease::take(port));
}

TEST_CASE("a port that some process has is not leased") {
  const auto candidates = some_candidates();
  auto probe = PortLease::take_any(candidates, 20);
  REQUIRE(probe);
  const std::uint16_t port = probe->port();
  *probe = PortLease();
  const Fd server = serve(port);
  REQUIRE(server);
  CHECK(PortLease::take(port).error().message == "a process on this host has it");
  const std::uint16_t only[] = {port};
  const auto none = PortLease::take_any(only, 0);
  REQUIRE_FALSE(none);
  CHECK(none.error().code == ErrorCode::unsupported);
  CHECK(none.error().message.find("none of 1 ports is free for MASTER_PORT") == 0);
  const auto named = lease_master_port(port, "run");
  CHECK(named.error().message.find("runner.master_port: " + std::to_string(port) +
                                   " is not free: a process on this host has it") == 0);
}

TEST_CASE("addresses and routes of this host") {
  const auto addresses = interface_addresses();
  CHECK(std::ranges::find(addresses, "lo 127.0.0.1/8") != addresses.end());
  CHECK(address_towards("127.0.0.9") == "127.0.0.1");
  for (const char* none : {"", "host.name", "127.0.0.1 ", "127.0.0.1/8"})
    CHECK(address_towards(none) == "");
  using Routes = std::vector<std::pair<std::string, std::string>>;
  CHECK(routes_to({"127.0.0.2", "nonsense"}) == Routes{{"127.0.0.2", "127.0.0.1"}});
}

TEST_CASE("rank 0's host reports its routes and a port, and the ranks get what Start brings") {
  wire::JobSpec job = make_job({kHelper, "show"}, 2);
  job.peers = {"127.0.0.2"};
  job.master_port = wire::kAnyPort;
  job.env = {{"BOTH", "job"}};
  RunnerClient client;
  const auto ready = client.prepare(job);
  REQUIRE(ready);
  REQUIRE(ready->routes.size() == 1);
  CHECK(ready->routes[0].second == "127.0.0.1");
  CHECK(std::ranges::find(ready->addresses, "lo 127.0.0.1/8") != ready->addresses.end());
  CHECK(ready->master_port >= 20000);
  const auto port = static_cast<std::uint16_t>(ready->master_port);
  CHECK_FALSE(serve(port));

  RunnerClient second;
  wire::JobSpec other = job;
  other.run_id += "-b";
  const auto other_ready = second.prepare(other);
  REQUIRE(other_ready);
  CHECK(other_ready->master_port != ready->master_port);

  client.send(wire::Start{{{"MASTER_PORT", std::to_string(port)}, {"BOTH", "start"}}});
  REQUIRE(client.wait_finished());
  for (const std::uint32_t rank : {0u, 1u}) {
    const auto env = shown_environment(client.out[rank]);
    CHECK(env.at("MASTER_PORT") == std::to_string(port));
    CHECK(env.at("BOTH") == "start");
  }
  CHECK(serve(port));
  CHECK_FALSE(PortLease::take(port));  // the lease lasts until the end of the run
  client.send(wire::Goodbye{});
  CHECK(client.wait_exit());
  CHECK(PortLease::take(port));
}

TEST_CASE("a job that asks for no port holds none") {
  RunnerClient client;
  const auto ready = client.prepare(make_job({"true"}));
  REQUIRE(ready);
  CHECK(ready->master_port == 0);
}

TEST_CASE("a port of the config that is taken ends the job before it starts") {
  const auto lease = PortLease::take_any(some_candidates(), 40);
  REQUIRE(lease);
  wire::JobSpec job = make_job({"true"});
  job.master_port = lease->port();
  RunnerClient client;
  CHECK_FALSE(client.prepare(job));
  REQUIRE(client.errors.size() == 1);
  CHECK(client.errors[0].code == "unsupported");
  CHECK(client.errors[0].message.find("another job of Sortie on this host has it") !=
        std::string::npos);
}

TEST_CASE("a variable of Start with a broken name is outside the protocol") {
  RunnerClient client;
  REQUIRE(client.prepare(make_job({"true"})));
  client.send(wire::Start{{{"A=B", "x"}}});
  CHECK(client.expect<wire::RunnerError>());
}
