// MASTER_ADDR and MASTER_PORT: the address and network at which all ranks reach rank 0.
#include "launcher/supervise/meeting.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/launcher/environment.h"
#include "tests/launcher/launch.h"
#include "tests/launcher/scripts.h"

namespace sortie::launcher {
namespace {

using test::Launch;
using test::succeed;
using Strings = std::vector<std::string>;

HostNetwork network(const std::string& name, const Strings& addresses,
                    std::vector<std::pair<std::string, std::string>> routes = {},
                    const std::string& reached_at = "") {
  HostNetwork out;
  out.name = out.hostname = name;
  out.reached_at = reached_at;
  out.addresses = *parse_addresses(addresses);
  out.routes = std::move(routes);
  return out;
}

const Strings kFirst = {"lo 127.0.0.1/8", "docker0 172.17.0.1/16", "eth0 192.168.1.1/24",
                        "ib0 10.1.0.1/16", "ib0 fd00::1/64"};
const Strings kSecond = {"lo 127.0.0.1/8", "docker0 172.17.0.1/16", "eth0 192.168.1.2/24",
                         "ib0 10.1.0.2/16", "ib0 fd00::2/64"};

TEST_CASE("addresses of a host, strictly") {
  const auto addresses = parse_addresses(kFirst);
  REQUIRE(addresses);
  REQUIRE(addresses->size() == 5);
  CHECK(addresses->at(3).interface == "ib0");
  CHECK(addresses->at(3).address == "10.1.0.1");
  CHECK(addresses->at(3).bits == 16);
  CHECK(addresses->at(4).v6);
  for (const char* bad : {"", "eth0", "eth0 ", "eth0 10.1.0.1", "eth0 10.1.0.1/33", "eth0 x/8",
                          "eth0 10.1.0.1/8 ", " 10.1.0.1/8", "sixteen-letters- 10.1.0.1/8",
                          "eth\x1b 10.1.0.1/8", "eth0 fd00::1/129", "eth0 10.1.0.1/-1"}) {
    CAPTURE(bad);
    const auto parsed = parse_addresses({bad});
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error().code == ErrorCode::protocol);
  }
  CHECK_FALSE(parse_addresses(Strings(1025, "eth0 10.1.0.1/8")));
}

TEST_CASE("the interface of the config: name, pattern or network") {
  const auto addresses = *parse_addresses(kFirst);
  const auto names = [&](const std::string& wanted) {
    std::string text;
    for (const InterfaceAddress& address : matching(addresses, wanted))
      text += address.address + " ";
    return text;
  };
  CHECK(names("eth0") == "192.168.1.1 ");
  CHECK(names("ib*") == "10.1.0.1 fd00::1 ");
  CHECK(names("10.1.0.0/16") == "10.1.0.1 ");
  CHECK(names("10.1.200.0/16") == "10.1.0.1 ");  // only the bits of the prefix count
  CHECK(names("10.0.0.0/9") == "10.1.0.1 ");
  CHECK(names("10.128.0.0/9") == "");
  CHECK(names("fd00::/64") == "fd00::1 ");
  CHECK(names("0.0.0.0/0") == "127.0.0.1 172.17.0.1 192.168.1.1 10.1.0.1 ");
  CHECK(names("eth") == "");
}

TEST_CASE("the route to the others decides") {
  const auto chosen = choose_meeting(
      {network("h1", kFirst, {{"10.1.0.2", "10.1.0.1"}}), network("h2", kSecond)}, "");
  REQUIRE(chosen);
  CHECK(chosen->address == "10.1.0.1");
  CHECK(chosen->how == "ib0 of h1: the route to 1 of 1 hosts");
  CHECK_FALSE(chosen->doubtful);
  SUBCASE("most of them, when they differ") {
    const auto meeting = choose_meeting(
        {network(
             "h1", kFirst,
             {{"192.168.1.2", "192.168.1.1"}, {"10.1.0.3", "10.1.0.1"}, {"10.1.0.4", "10.1.0.1"}}),
         network("h2", kSecond), network("h3", {}), network("h4", {})},
        "");
    CHECK(meeting->address == "10.1.0.1");
    CHECK(meeting->doubtful);
  }
  SUBCASE("but no loopback, no address that every host has, none that the host does not have") {
    const auto meeting = choose_meeting({network("h1", kFirst,
                                                 {{"127.0.0.1", "127.0.0.1"},
                                                  {"172.17.0.9", "172.17.0.1"},
                                                  {"9.9.9.9", "6.6.6.6"},
                                                  {"192.168.1.2", "192.168.1.1"}}),
                                         network("h2", kSecond)},
                                        "");
    CHECK(meeting->address == "192.168.1.1");
  }
}

TEST_CASE("no routes are known: the network that all hosts are in, and never the bridge") {
  const auto meeting = choose_meeting(
      {network("h1", kFirst), network("h2", {"docker0 172.17.0.1/16", "x 10.1.7.7/8"})}, "");
  CHECK(meeting->address == "10.1.0.1");
  CHECK(meeting->how == "ib0 of h1: every host is in its network");
}

TEST_CASE("no common network: as it was reached, or its only address, or its name") {
  const HostNetwork other = network("h2", {"eth0 8.8.8.8/24"});
  CHECK(choose_meeting({network("h1", kFirst, {}, "10.1.0.1"), other}, "")->address == "10.1.0.1");
  CHECK(choose_meeting({network("h1", {"lo 127.0.0.1/8", "e 7.7.7.7/24"}), other}, "")->address ==
        "7.7.7.7");
  // Reached through a forwarded port: an address that other hosts can not use.
  const auto named = choose_meeting({network("h1", kFirst, {}, "127.0.0.1"), other}, "");
  CHECK(named->address == "h1");
  CHECK(named->doubtful);
  CHECK(choose_meeting({network("h1", {"lo 127.0.0.1/8"}), other}, "")->how ==
        "its name: it reports no address that other hosts could use");
  HostNetwork here = network("localhost", kFirst);
  here.hostname = "bastion";
  CHECK(choose_meeting({here, other}, "")->address == "bastion");
}

TEST_CASE("one machine meets on its loopback, whatever its names are") {
  CHECK(choose_meeting({network("h1", kFirst)}, "")->address == "127.0.0.1");
  HostNetwork alias = network("h2", kFirst);
  alias.hostname = "h1";
  CHECK(choose_meeting({network("h1", kFirst), alias}, "")->address == "127.0.0.1");
  CHECK(choose_meeting({network("h1", kFirst)}, "eth0")->address == "192.168.1.1");
}

TEST_CASE("an interface must be on every host, and the error says what there is") {
  const std::vector<HostNetwork> hosts = {network("h1", kFirst), network("h2", kSecond),
                                          network("h3", {"eth0 192.168.1.3/24"})};
  CHECK(choose_meeting({hosts[0], hosts[1]}, "ib0")->address == "10.1.0.1");
  CHECK(choose_meeting({hosts[0], hosts[1]}, "fd00::/64")->address == "fd00::1");
  const auto lacking = choose_meeting(hosts, "10.1.0.0/16");
  REQUIRE_FALSE(lacking);
  CHECK(lacking.error().code == ErrorCode::unsupported);
  CHECK(lacking.error().message ==
        "runner.network.interface: no address of h3 matches 10.1.0.0/16; name an interface or a "
        "network that every host has\n  h3 has eth0 192.168.1.3/24");
  CHECK(choose_meeting({hosts[0], hosts[1]}, "lo").error().message.find("loopback") !=
        std::string::npos);
}

TEST_CASE("what frameworks need to use the interface") {
  const HostNetwork host = network("h1", kFirst);
  const Environment named = interface_environment(host, "eth0", {});
  CHECK(value_of(named, "NCCL_SOCKET_IFNAME") == "=eth0");
  CHECK(value_of(named, "GLOO_SOCKET_IFNAME") == "eth0");
  CHECK(value_of(named, "TP_SOCKET_IFNAME") == "eth0");
  CHECK(value_of(named, "OMPI_MCA_btl_tcp_if_include") == "eth0");
  const Environment both = interface_environment(host, "*0", {});
  CHECK(value_of(both, "NCCL_SOCKET_IFNAME") == "=docker0,eth0,ib0");
  CHECK(value_of(both, "GLOO_SOCKET_IFNAME") == "docker0");
  const Environment cidr =
      interface_environment(host, "10.1.0.0/16", {{"NCCL_SOCKET_IFNAME", "x"}});
  CHECK(value_of(cidr, "NCCL_SOCKET_IFNAME") == "(unset)");
  CHECK(value_of(cidr, "GLOO_SOCKET_IFNAME") == "ib0");
  CHECK(value_of(cidr, "OMPI_MCA_btl_tcp_if_include") == "10.1.0.0/16");
  CHECK(value_of(interface_environment(host, "eth0", {{"OMPI_MCA_btl_tcp_if_exclude", "lo"}}),
                 "OMPI_MCA_btl_tcp_if_include") == "(unset)");
  CHECK(interface_environment(host, "", {}).empty());
}

TEST_CASE("rank 0's host alone is asked, for the addresses that mean something to it") {
  Launch launch({{"h1", {0}}, {"h2", {0}}, {"h3", {0}}, {"localhost", {0}}});
  for (const char* name : {"h1", "h2", "h3", "localhost"}) launch.host(name).script = succeed;
  launch.host("h1").address = "10.1.0.1";
  launch.host("h2").address = "10.1.0.2";
  launch.host("h3").address = "127.0.0.1";  // reached through a forwarded port
  launch.host("localhost").address = "";
  CHECK(launch.run().exit_code == 0);
  CHECK(launch.runner("h1").job.peers == Strings{"10.1.0.2"});
  CHECK(launch.runner("h2").job.peers.empty());
}

TEST_CASE("all hosts start with the address and the port that the first one has") {
  Launch launch({{"h1", {0}}, {"h2", {0}}});
  launch.host("h1").script = launch.host("h2").script = succeed;
  launch.host("h1").ready.addresses = kFirst;
  launch.host("h1").ready.routes = {{"10.1.0.2", "10.1.0.1"}};
  launch.host("h2").ready.addresses = kSecond;
  SUBCASE("a leased port") {
    CHECK(launch.run().exit_code == 0);
    CHECK(launch.runner("h1").job.master_port == wire::kAnyPort);
    CHECK(launch.runner("h2").job.master_port == 0);
    for (const char* host : {"h1", "h2"}) {
      CHECK(value_of(launch.runner(host).start_env, "MASTER_ADDR") == "10.1.0.1");
      CHECK(value_of(launch.runner(host).start_env, "MASTER_PORT") ==
            std::to_string(test::kLeasedPort));
    }
    const auto events = launch.events_named("master");
    REQUIRE(events.size() == 1);
    CHECK(events[0]["address"] == "10.1.0.1");
    CHECK(events[0]["port"] == test::kLeasedPort);
    CHECK(events[0]["host"] == "h1");
  }
  SUBCASE("set by the config") {
    launch.job.runner.master_addr = "head";
    launch.job.runner.master_port = 29500;
    CHECK(launch.run().exit_code == 0);
    CHECK(launch.runner("h1").job.master_port == 29500);
    CHECK(launch.runner("h2").job.master_port == 0);
    CHECK(value_of(launch.runner("h2").start_env, "MASTER_ADDR") == "head");
    CHECK(value_of(launch.runner("h2").start_env, "MASTER_PORT") == "29500");
  }
  SUBCASE("on a network that one host lacks: nothing starts") {
    launch.job.runner.network.interface = "ib1";
    const Verdict verdict = launch.run();
    CHECK(verdict.exit_code == 3);
    CHECK(verdict.text.starts_with("runner.network.interface: no address of h[1-2] matches ib1"));
    CHECK(launch.runner("h1").all<wire::Start>().empty());
  }
  SUBCASE("on a network of the config") {
    launch.job.runner.network.interface = "eth*";
    CHECK(launch.run().exit_code == 0);
    CHECK(value_of(launch.runner("h2").start_env, "MASTER_ADDR") == "192.168.1.1");
    CHECK(value_of(launch.runner("h2").start_env, "NCCL_SOCKET_IFNAME") == "=eth0");
  }
}

TEST_CASE("a host that answers outside the grammar is not started") {
  Launch launch({{"h1", {0, 1}}});
  launch.host("h1").script = succeed;
  SUBCASE("addresses") {
    launch.host("h1").ready.addresses = {"\x1b[2J"};
  }
  SUBCASE("port") {
    launch.host("h1").ready.master_port = 70000;
  }
  SUBCASE("too few CPU sets") {
    launch.host("h1").ready.cpu_sets = {"0"};
  }
  SUBCASE("no CPU sets") {
    launch.host("h1").ready.cpu_sets = {"0", "\x1b[2J"};
  }
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 1);
  CHECK(verdict.text.starts_with("h1: protocol: runner sent "));
  CHECK(verdict.text.find("outside the grammar") != std::string::npos);
}

TEST_CASE("the sets that ranks are bound to are in the journal") {
  Launch launch({{"h1", {0, 1}}});
  launch.host("h1").script = succeed;
  launch.host("h1").ready.cpu_sets = {"0-3", "4-7"};
  launch.host("h1").ready.binding = "core: 2 ranks on 8 cores";
  CHECK(launch.run().exit_code == 0);
  const auto started = launch.events_named("rank_started");
  REQUIRE(started.size() == 2);
  CHECK(started[1]["cpus"] == "4-7");
  CHECK(launch.events_named("ready")[0]["cpu_binding"] == "core: 2 ranks on 8 cores");
}

}  // namespace
}  // namespace sortie::launcher
