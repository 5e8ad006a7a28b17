// MASTER_ADDR: where the ranks of all hosts find rank 0.
#include "launcher/master_address.h"

#include <doctest/doctest.h>

#include <boost/asio/ip/host_name.hpp>

#include "tests/launcher/launch.h"
#include "tests/launcher/scripts.h"

namespace sortie::launcher {
namespace {

using test::Launch;
using test::succeed;

std::string master_addr(Launch& launch, const std::string& host) {
  for (const auto& [name, value] : launch.runner(host).job.ranks.at(0).env)
    if (name == "MASTER_ADDR") return value;
  return "";
}

TEST_CASE("where ranks find rank 0") {
  SUBCASE("on the first host, as it was reached") {
    Launch launch({{"h1", {0}}, {"h2", {0}}});
    launch.host("h1").script = launch.host("h2").script = succeed;
    launch.host("h1").address = "10.1.2.3";
    CHECK(launch.run().exit_code == 0);
    CHECK(master_addr(launch, "h2") == "10.1.2.3");
  }
  SUBCASE("behind a jump host, by the host's name") {
    Launch launch({{"h1", {0}}});
    launch.host("h1").script = succeed;
    launch.host("h1").address = "";
    CHECK(launch.run().exit_code == 0);
    CHECK(master_addr(launch, "h1") == "h1");
  }
  SUBCASE("a job on this machine alone: the loopback") {
    Launch launch({{"localhost", {0}}});
    launch.host("localhost").script = succeed;
    CHECK(launch.run().exit_code == 0);
    CHECK(master_addr(launch, "localhost") == "127.0.0.1");
  }
  SUBCASE("on this machine, for others too: the address that they see") {
    Launch launch({{"localhost", {0}}, {"h2", {0}}});
    launch.host("localhost").script = launch.host("h2").script = succeed;
    launch.host("h2").address = "127.0.0.77";  // anything that a machine has a route to
    CHECK(launch.run().exit_code == 0);
    CHECK(master_addr(launch, "h2") == address_towards("127.0.0.77"));
    CHECK_FALSE(master_addr(launch, "h2").empty());
  }
  SUBCASE("on this machine, and the others' addresses are not known: its name") {
    Launch launch({{"localhost", {0}}, {"h2", {0}}});
    launch.host("localhost").script = launch.host("h2").script = succeed;
    launch.host("h2").address = "";
    CHECK(launch.run().exit_code == 0);
    CHECK(master_addr(launch, "h2") == boost::asio::ip::host_name());
  }
}

TEST_CASE("the address towards a peer follows the routing table") {
  CHECK(address_towards("127.0.0.1") == "127.0.0.1");
  CHECK(address_towards("127.0.0.9") == "127.0.0.1");
  CHECK(address_towards("") == "");
  CHECK(address_towards("not.an.address") == "");
}

}  // namespace
}  // namespace sortie::launcher
