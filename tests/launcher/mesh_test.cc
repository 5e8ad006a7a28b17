// A mesh of tunnels: the plan derived from the hosts' reports, and the conversation.
#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "launcher/tunnel/mesh.h"
#include "launcher/tunnel/mesh_setup.h"

using namespace sortie;
using namespace sortie::launcher;
using namespace sortie::launcher::tunnel;
using Json = nlohmann::json;

namespace {

MeshHost mesh_host(const std::string& name, const std::string& reached_at,
                   const std::vector<std::string>& lines) {
  MeshHost host;
  host.name = name;
  host.reached_at = reached_at;
  host.addresses = *parse_addresses(lines);
  host.via = "kernel";
  host.port = 51820;
  return host;
}

std::vector<MeshHost> three_hosts() {
  return {mesh_host("h1", "10.1.0.1", {"lo 127.0.0.1/8", "eth0 10.1.0.1/24"}),
          mesh_host("h2", "10.1.0.2", {"lo 127.0.0.1/8", "eth0 10.1.0.2/24"}),
          mesh_host("h3", "192.0.2.3", {"lo 127.0.0.1/8", "eth0 192.168.7.3/24"})};
}

Contacts all_direct(std::size_t count, std::uint32_t mtu = 1420) {
  Contacts contacts(count, std::vector<Contact>(count));
  for (std::size_t a = 0; a < count; ++a)
    for (std::size_t b = 0; b < count; ++b)
      if (a != b) contacts[a][b] = {"10.1.0.9:51820", false, mtu, 100};
  return contacts;
}

void cut(Contacts& contacts, std::size_t a, std::size_t b) {
  contacts[a][b] = contacts[b][a] = {};
}

/// Answers as runners give them if all hosts can reach each other.
std::vector<std::string> answers_to(const MeshSetup& setup) {
  std::vector<std::string> answers;
  for (const std::string& text : setup.orders()) {
    const Json order = Json::parse(text);
    Json answer = {{"part", order["do"]}};
    if (order["do"] == "open") {
      answer.update({{"key", std::string(42, 'A') + static_cast<char>('B' + answers.size()) + "="},
                     {"via", "kernel"},
                     {"port", order["port"]},
                     {"networks", {"10.1.0.0/24"}}});
    } else if (order["do"] == "raise") {
      answer["port"] = 40000 + answers.size();
    } else {
      answer["peers"] = Json::array();
      for (const Json& peer : order["peers"])
        answer["peers"].push_back({{"index", peer["index"]},
                                   {"endpoint", peer["endpoints"][0]},
                                   {"learned", false},
                                   {"mtu", 1420},
                                   {"round_trip_us", 90},
                                   {"small", true},
                                   {"full", true}});
    }
    answers.push_back(answer.dump());
  }
  return answers;
}

}  // namespace

TEST_CASE(
    "a host is looked for in the networks that both are in, then where the launcher reaches it") {
  MeshHost a = mesh_host("a", "192.0.2.1",
                         {"eth0 192.0.2.1/24", "ib0 10.9.0.1/16", "docker0 172.17.0.1/16"});
  MeshHost b = mesh_host("b", "198.51.100.2",
                         {"lo 127.0.0.1/8", "docker0 172.17.0.1/16", "eth0 10.0.0.2/24",
                          "ib0 10.9.0.2/16", "eth0 fd00::2/64"});
  b.port = 51821;
  CHECK(endpoints_for(a, b) == std::vector<std::string>{"10.9.0.2:51821", "198.51.100.2:51821",
                                                        "10.0.0.2:51821", "[fd00::2]:51821"});
  // Other hosts can not reach this machine at 127.0.0.1, the address at which the launcher reaches
  // it.
  b.reached_at = "127.0.0.1";
  CHECK(endpoints_for(a, b).size() == 3);
  b.addresses.resize(1);
  CHECK(endpoints_for(a, b).empty());
}

TEST_CASE("the network of a mesh overlaps no route of any host") {
  std::vector<MeshHost> hosts = three_hosts();
  const auto first = choose_network(hosts, 7);
  REQUIRE(first);
  CHECK(first->first == "10.64.7.0/24");
  CHECK(address_in(first->first, 0) == "10.64.7.1");
  hosts[1].networks = {"10.64.7.128/25", "10.64.8.0/23"};
  CHECK(choose_network(hosts, 7)->first == "10.64.10.0/24");
  hosts[2].networks = {"10.0.0.0/8"};
  CHECK(choose_network(hosts, 7)->first == "172.16.7.0/24");
  hosts[2].networks = {"10.0.0.0/8", "172.16.0.0/12", "198.18.0.0/15", "192.168.0.0/16"};
  const auto none = choose_network(hosts, 7);
  REQUIRE_FALSE(none);
  CHECK(none.error().message.find("h2 has a route to 10.64.7.128/25") != std::string::npos);
  // A default route does not conflict. Texts that are no networks are ignored.
  hosts[2].networks = {"0.0.0.0/0", "nonsense", "10.0.0.0/33"};
  hosts[1].networks.clear();
  CHECK(choose_network(hosts, 7)->first == "10.64.7.0/24");
}

TEST_CASE("a mesh of many hosts has room for all, each with an address of its own") {
  const std::vector<MeshHost> hosts(300, three_hosts()[0]);
  const auto network = choose_network(hosts, 3);
  REQUIRE(network);
  CHECK(network->second == 23);
  std::set<std::string> addresses;
  for (std::size_t i = 0; i < hosts.size(); ++i) addresses.insert(address_in(network->first, i));
  CHECK(addresses.size() == 300);
  CHECK(address_in("10.64.6.0/23", 299) == "10.64.7.44");
}

TEST_CASE("devices of runs, attempts and hosts have names of their own") {
  const std::set<std::string> names = {device_name("run-a", 1, 0), device_name("run-a", 1, 1),
                                       device_name("run-a", 2, 0), device_name("run-b", 1, 0)};
  CHECK(names.size() == 4);
  for (const std::string& name : names) CHECK((name.starts_with("sortie-") && name.size() == 15));
}

TEST_CASE("the narrowest way decides on the MTU, and is named") {
  const std::vector<MeshHost> hosts = three_hosts();
  Contacts contacts = all_direct(3);
  contacts[2][1].mtu = 1340;
  const auto mesh = plan_mesh(hosts, contacts, 7);
  REQUIRE(mesh);
  CHECK(mesh->mtu == 1340);
  CHECK(mesh->relayed.empty());
  CHECK(
      mesh_text(hosts, *mesh) ==
      "10.64.7.0/24, MTU 1340, by the kernel (the way between h3 and h2 carries no more than 1400 "
      "bytes)");
  // A direction without a measurement does not count as an MTU of 0.
  contacts[0][1].mtu = 0;
  CHECK(plan_mesh(hosts, contacts, 7)->mtu == 1340);
}

TEST_CASE("pairs that do not hear each other go by way of a third host, or are named") {
  const std::vector<MeshHost> hosts = three_hosts();
  Contacts contacts = all_direct(3);
  cut(contacts, 0, 2);
  const auto mesh = plan_mesh(hosts, contacts, 7);
  REQUIRE(mesh);
  REQUIRE(mesh->relayed.size() == 1);
  CHECK(mesh->relayed[0].hub == 1);
  CHECK(mesh_text(hosts, *mesh).ends_with("; h1 - h3 relayed by h2"));
  cut(contacts, 1, 2);
  const auto none = plan_mesh(hosts, contacts, 7);
  REQUIRE_FALSE(none);
  const std::string& text = none.error().message;
  CHECK(
      text.starts_with("runner.network.tunnel: 2 pairs of hosts can not reach each other by UDP"));
  CHECK(text.find("\n  h1 - h3: no answer from 192.0.2.3:51820 192.168.7.3:51820, and none from "
                  "10.1.0.1:51820") != std::string::npos);
  CHECK(text.find("\n  h2 - h3: ") != std::string::npos);
  CHECK(text.find("`ufw allow 51820/udp`") != std::string::npos);
  // A contact in one direction is enough: the other host answers.
  contacts[1][2] = {"192.0.2.3:51820", false, 1420, 100};
  CHECK(plan_mesh(hosts, contacts, 7)->relayed.size() == 1);
}

TEST_CASE("a hub that only the others have measured is not taken for the nearest") {
  std::vector<MeshHost> hosts = three_hosts();
  hosts.push_back(mesh_host("h4", "10.1.0.4", {"eth0 10.1.0.4/24"}));
  Contacts contacts = all_direct(4);
  cut(contacts, 0, 2);
  for (const std::size_t end : {0, 2}) {
    contacts[3][end] = {};
    contacts[end][3].round_trip_us = 5000;
  }
  const auto mesh = plan_mesh(hosts, contacts, 7);
  REQUIRE(mesh);
  REQUIRE(mesh->relayed.size() == 1);
  CHECK(mesh->relayed[0].hub == 1);
}

TEST_CASE("the conversation makes a mesh in four steps") {
  MeshSetup setup(three_hosts(), {"run-a", 1, 51900});
  std::vector<std::string> steps;
  Result<bool> more = true;
  std::map<std::string, Json> first;  // orders for the first host, by step
  while (more && *more) {
    steps.emplace_back(setup.step());
    first[setup.step()] = Json::parse(setup.orders()[0]);
    more = setup.take(answers_to(setup));
  }
  REQUIRE_MESSAGE(more, (more ? "" : more.error().message));
  CHECK(steps == std::vector<std::string>{"open", "survey", "raise", "prove"});
  CHECK(first["open"]["name"] == setup.device(0));
  CHECK(first["open"]["port"] == 51900);
  CHECK(first["survey"]["peers"][0]["endpoints"][0] == "10.1.0.2:51900");
  CHECK(first["raise"]["mtu"] == 1420);
  CHECK(first["raise"]["forward"] == false);
  REQUIRE(first["raise"]["peers"].size() == 2);
  CHECK(first["raise"]["peers"][0]["allowed"].size() == 1);
  CHECK_FALSE(first["raise"]["peers"][0].contains("keepalive"));
  CHECK(first["prove"]["peers"][1]["endpoints"][0] == setup.mesh().addresses[2] + ":40002");
  CHECK(first["prove"]["peers"][1]["after_ms"] == 0);
}

TEST_CASE("a hub is told to forward, and stands for the host behind it") {
  MeshSetup setup(three_hosts(), {"run-a", 1, 51820});
  REQUIRE(setup.take(answers_to(setup)));
  std::vector<std::string> surveys = answers_to(setup);
  for (const auto& [host, gone] : {std::pair{0, 2}, {2, 0}}) {
    Json report = Json::parse(surveys[static_cast<std::size_t>(host)]);
    Json peers = Json::array();
    for (const Json& peer : report["peers"])
      if (peer["index"] != gone) peers.push_back(peer);
    peers[0]["learned"] = true;
    report["peers"] = peers;
    surveys[static_cast<std::size_t>(host)] = report.dump();
  }
  REQUIRE(setup.take(surveys));
  const auto orders = setup.orders();
  const Json end = Json::parse(orders[0]), hub = Json::parse(orders[1]);
  CHECK(end["forward"] == false);
  CHECK(hub["forward"] == true);
  REQUIRE(end["peers"].size() == 1);
  CHECK(end["peers"][0]["allowed"] == Json({setup.mesh().addresses[1], setup.mesh().addresses[2]}));
  CHECK(end["peers"][0]["keepalive"] == 25);
  REQUIRE(hub["peers"].size() == 2);
  for (const Json& peer : hub["peers"]) CHECK(peer["allowed"].size() == 1);
}

TEST_CASE("of each pair one end begins the handshake, one that knows where the other is") {
  MeshSetup setup(three_hosts(), {"run-a", 1, 51820});
  REQUIRE(setup.take(answers_to(setup)));
  std::vector<std::string> surveys = answers_to(setup);
  Json report = Json::parse(surveys[0]);
  report["peers"][1]["learned"] = true;  // h3 is behind NAT
  surveys[0] = report.dump();
  REQUIRE(setup.take(surveys));
  REQUIRE(setup.take(answers_to(setup)));
  std::vector<std::vector<int>> after(3, std::vector<int>(3));
  for (std::size_t i = 0; i < 3; ++i) {
    const Json order = Json::parse(setup.orders()[i]);
    for (const Json& peer : order["peers"])
      after[i][peer["index"].get<std::size_t>()] = peer["after_ms"];
  }
  CHECK(after[0][1] == 0);
  CHECK(after[1][0] > 0);
  CHECK(after[2][0] == 0);
  CHECK(after[0][2] > 0);
  CHECK(after[1][2] == 0);
  CHECK(after[2][1] > 0);
}

TEST_CASE("a tunnel that does not carry everything is refused with its pairs") {
  MeshSetup setup(three_hosts(), {"run-a", 1, 51820});
  for (int step = 0; step < 3; ++step) REQUIRE(setup.take(answers_to(setup)));
  std::vector<std::string> proofs = answers_to(setup);
  Json report = Json::parse(proofs[0]);
  report["peers"][0]["full"] = false;
  report["peers"][1]["full"] = report["peers"][1]["small"] = false;
  proofs[0] = report.dump();
  const auto refused = setup.take(proofs);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::connect);
  CHECK(refused.error().message.find("h1 -> h2: packets of its MTU are lost") != std::string::npos);
  CHECK(refused.error().message.find("h1 -> h3: no handshake") != std::string::npos);
}

TEST_CASE("what no runner says is not believed") {
  const auto refused_at = [](int step, const char* key, const Json& value) {
    MeshSetup setup(three_hosts(), {"run-a", 1, 51820});
    for (int i = 0; i < step; ++i) REQUIRE(setup.take(answers_to(setup)));
    std::vector<std::string> answers = answers_to(setup);
    Json report = Json::parse(answers[1]);
    if (step == 1 && std::string_view(key) != "part")
      report["peers"][0][key] = value;
    else
      report[key] = value;
    answers[1] = report.dump();
    const auto taken = setup.take(answers);
    return !taken && taken.error().code == ErrorCode::protocol &&
           taken.error().message.starts_with("h2: runner sent a TunnelReport");
  };
  CHECK(refused_at(0, "part", "survey"));
  CHECK(refused_at(0, "key", "x\nPostUp = rm"));
  CHECK(refused_at(0, "key", std::string(44, 'A')));
  CHECK(refused_at(0, "port", 0));
  CHECK(refused_at(0, "port", "51820"));
  CHECK(refused_at(0, "via", "magic"));
  CHECK(refused_at(0, "networks", "10.0.0.0/8"));
  CHECK(refused_at(1, "index", 3));
  CHECK(refused_at(1, "index", 1));
  CHECK(refused_at(1, "endpoint", "host.example:1\n"));
  CHECK(refused_at(2, "port", 70000));
  MeshSetup setup(three_hosts(), {"run-a", 1, 51820});
  CHECK_FALSE(setup.take({"", "[]", "{"}));
}
