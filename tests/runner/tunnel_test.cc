// The parts of a tunnel that have no side effects, and its prober on the loopback interface.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <nlohmann/json.hpp>

#include "common/asio/spawn.h"
#include "runner/tunnel/holder_orders.h"
#include "runner/tunnel/link_device.h"
#include "runner/tunnel/prober.h"
#include "runner/tunnel/tool.h"
#include "runner/tunnel/wireguard.h"
#include "tests/support/runner_client.h"

namespace sortie::runner::tunnel {
namespace {

using Json = nlohmann::json;

const std::string kKey = "6dVsUy0f1yTtqWq8yIqPqWk3P7D3j2y3nYc2b9rQz2A=";

TEST_CASE("keys of a tunnel are those of wg(8)") {
  const KeyPair a = make_keys(), b = make_keys();
  CHECK(is_key(a.secret));
  CHECK(is_key(a.open));
  CHECK(a.secret != b.secret);
  CHECK(a.secret != a.open);
  CHECK_FALSE(is_key(""));
  CHECK_FALSE(is_key(a.open.substr(1)));
  CHECK_FALSE(is_key(std::string(43, 'A') + "\n"));
}

TEST_CASE("the configuration of a tunnel has exactly one address per peer, or those behind a hub") {
  KeyPair keys;
  keys.secret = "SECRET";
  const std::vector<Peer> peers = {{kKey, {"10.70.1.2"}, "192.0.2.1:51820", 25},
                                   {kKey, {"10.70.1.3", "10.70.1.4"}, "", 0}};
  CHECK(config_text(keys, 51820, peers) ==
        "[Interface]\nPrivateKey = SECRET\nListenPort = 51820\n"
        "[Peer]\nPublicKey = " +
            kKey +
            "\nAllowedIPs = 10.70.1.2/32\n"
            "Endpoint = 192.0.2.1:51820\n"
            "[Peer]\nPublicKey = " +
            kKey + "\nAllowedIPs = 10.70.1.3/32, 10.70.1.4/32\n");
  CHECK(keepalive_words("sortie-0", peers) ==
        std::vector<std::string>{"set", "sortie-0", "peer", kKey, "persistent-keepalive", "25"});
  CHECK(keepalive_words("sortie-0", {peers[1]}).empty());
}

TEST_CASE("a holder takes no peer that could be more than it seems") {
  const auto is_good = [](const Peer& peer) { return check_peer(peer).has_value(); };
  CHECK(is_good({kKey, {"10.70.1.2"}, "[fd00::1]:51820", 25}));
  CHECK_FALSE(is_good({"no key", {"10.70.1.2"}, "", 0}));
  CHECK_FALSE(is_good({kKey, {}, "", 0}));
  CHECK_FALSE(is_good({kKey, {"0.0.0.0/0"}, "", 0}));
  CHECK_FALSE(is_good({kKey, {"10.70.1.2\nPrivateKey = x"}, "", 0}));
  CHECK_FALSE(is_good({kKey, {"10.70.1.2"}, "host.example:51820", 0}));
  CHECK_FALSE(is_good({kKey, {"10.70.1.2"}, "192.0.2.1:0", 0}));
  CHECK_FALSE(is_good({kKey, {"10.70.1.2"}, "192.0.2.1:51820\nPostUp = x", 0}));
}

TEST_CASE("without a program there is none that ends, whatever other children do") {
  Service none;
  CHECK_FALSE(ended(none));  // no child process
  const pid_t other = ::fork();
  if (other == 0) ::_exit(0);
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(other), &info, WEXITED | WNOWAIT) == 0);
  CHECK_FALSE(ended(none));
  CHECK(::waitpid(other, nullptr, WNOHANG) == other);  // ended() has not reaped it

  auto service = start_service({"/bin/sh", "-c", "exit 3"}, {});
  REQUIRE(service);
  REQUIRE(::waitid(P_PID, static_cast<id_t>(service->pid), &info, WEXITED | WNOWAIT) == 0);
  const auto status = ended(*service);
  REQUIRE(status);
  CHECK(status->code == 3);
  CHECK_FALSE(ended(*service));
}

TEST_CASE("what a tool of a tunnel writes is one line that a terminal can show") {
  CHECK(one_line("wg: no\tdevice\nsee \u00e9\n") == "wg: no device see \u00e9");
  CHECK(one_line("a\x1b[2J\u202e\xff") == "a^[[2J<U+202E>\ufffd");
}

TEST_CASE("an order to raise a tunnel is checked member by member") {
  const Json good = {{"do", "up"},
                     {"address", "10.70.1.1"},
                     {"prefix", 24},
                     {"mtu", 1420},
                     {"port", 51820},
                     {"forward", true},
                     {"peers", {{{"key", kKey}, {"allowed", {"10.70.1.2"}}, {"keepalive", 25}}}}};
  const auto order = read_up_order(good);
  REQUIRE(order);
  CHECK(order->forward);
  CHECK(order->peers.front().keepalive_s == 25);
  for (const auto& [key, bad] : {std::pair<const char*, Json>{"prefix", 31},
                                 {"prefix", "24"},
                                 {"mtu", 500},
                                 {"port", 0},
                                 {"port", 65536},
                                 {"peers", Json()},
                                 {"peers", {1}},
                                 {"peers", {{{"key", "x"}}}}}) {
    CAPTURE(key);
    Json order_with = good;
    order_with[key] = bad;
    CHECK_FALSE(read_up_order(order_with).has_value());
  }
  CHECK_FALSE(read_up_order(Json::array()).has_value());
}

TEST_CASE("the table of wg show dump") {
  const auto peers =
      parse_dump("SECRET\t" + kKey + "\t51820\toff\n" + kKey +
                 "\t(none)\t192.0.2.1:51820\t10.70.1.2/32\t1700000000\t123\t456\t25\n" + kKey +
                 "\t(none)\t(none)\t10.70.1.3/32\t0\t0\t0\toff\n");
  REQUIRE(peers);
  REQUIRE(peers->size() == 2);
  CHECK(peers->at(0).endpoint == "192.0.2.1:51820");
  CHECK(peers->at(0).handshake_unix_s == 1700000000);
  CHECK(peers->at(0).received == 123);
  CHECK(peers->at(0).sent == 456);
  CHECK(peers->at(1).endpoint.empty());
  CHECK(peers->at(1).handshake_unix_s == 0);
  CHECK_FALSE(parse_dump("").has_value());
  CHECK_FALSE(parse_dump("a\tb\n").has_value());
  CHECK_FALSE(parse_dump("S\tP\t51820\toff\n" + kKey + "\tx\n").has_value());
}

TEST_CASE("only devices of tunnels have their names") {
  CHECK(is_device_name("sortie-0a1b2c3d"));
  for (const char* other :
       {"eth0", "sortie-0a1b2c3", "sortie-0a1b2c3de", "sortie-0A1B2C3D", "sortie-../../x", ""})
    CHECK_FALSE(is_device_name(other));
}

TEST_CASE("networks of the routing table, without the default route") {
  CHECK(networks_in(
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
            "eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
            "eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
            "wg0\t0007460A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
            "broken line\n") == std::vector<std::string>{"10.0.0.0/24", "10.70.7.0/24"});
  CHECK(networks_in("").empty());
}

TEST_CASE("endpoints are numeric") {
  CHECK(endpoint_text(*parse_endpoint("192.0.2.1:51820")) == "192.0.2.1:51820");
  CHECK(endpoint_text(*parse_endpoint("[fd00::1]:1")) == "[fd00::1]:1");
  for (const char* bad : {"", "192.0.2.1", "host:1", "192.0.2.1:0", "192.0.2.1:65536", "::1", ":1"})
    CHECK_FALSE(parse_endpoint(bad).has_value());
}

/// Probers that all keep answering until the last one has finished probing.
struct UdpMeeting {
  std::vector<std::shared_ptr<Prober>> probers;
  std::size_t done = 0;

  boost::asio::awaitable<void> probe(std::size_t who, ProbePeer peer,
                                     std::vector<std::size_t> sizes,
                                     std::vector<ProbeOutcome>& seen) {
    std::vector<ProbePeer> peers(1, std::move(peer));
    seen = co_await probers[who]->probe(std::move(peers), std::move(sizes),
                                        std::chrono::milliseconds(5000));
    if (++done == probers.size())
      for (const auto& prober : probers) prober->close();
  }
};

TEST_CASE("hosts that ask each other by UDP find the largest size, and who is not there") {
  boost::asio::io_context io(1);
  Prober::Token token{}, other{};
  token.fill('t');
  other.fill('o');
  const auto loopback = boost::asio::ip::make_address("127.0.0.1");
  const auto a = std::make_shared<Prober>(io, token, 0), b = std::make_shared<Prober>(io, token, 1),
             stranger = std::make_shared<Prober>(io, other, 2);
  const auto at_a = a->open_at(loopback), at_b = b->open_at(loopback),
             at_stranger = stranger->open_at(loopback);
  REQUIRE((at_a && at_b && at_stranger));
  // b has no address to probe: it uses those from which it is probed.
  std::vector<ProbeOutcome> of_a, of_b, of_stranger;
  UdpMeeting meeting{{a, b, stranger}};
  spawn(io, meeting.probe(0, {1, {{loopback, *at_b}}}, {70000, 9000, 1452}, of_a));
  spawn(io, meeting.probe(1, {0, {}}, {1452}, of_b));
  spawn(io, meeting.probe(2, {1, {{loopback, *at_b}}}, {1452}, of_stranger));
  io.run();
  REQUIRE(of_a.size() == 1);
  CHECK(of_a[0].endpoint == UdpEndpoint(loopback, *at_b));
  CHECK_FALSE(of_a[0].learned);
  CHECK(of_a[0].size == 9000);
  CHECK(of_a[0].round_trip_us > 0);
  REQUIRE(of_b.size() == 1);
  CHECK(of_b[0].endpoint == UdpEndpoint(loopback, *at_a));
  CHECK(of_b[0].learned);
  CHECK(of_b[0].size == 1452);
  REQUIRE(of_stranger.size() == 1);
  CHECK_FALSE(of_stranger[0].endpoint.has_value());
}

const std::string kOpen = R"({"do":"open","name":"sortie-0a1b2c3d","port":51820,"me":0,"token":")" +
                          std::string(32, 'a') + R"("})";

TEST_CASE("a tunnel needs a job that is ready, orders in their order, and a name of its own") {
  const auto refused = [](bool with_job, const std::string& order) {
    test::RunnerClient client;
    if (with_job)
      REQUIRE(client.prepare(test::make_job({"true"})));
    else
      client.send(wire::Hello{});
    client.send(wire::TunnelOrder{order});
    const auto error = client.expect<wire::RunnerError>();
    REQUIRE(error);
    CHECK(error->code == "protocol");
    CHECK(client.wait_exit()->code == 1);
    return error->message;
  };
  CHECK(refused(false, kOpen) == "TunnelOrder without a job that is ready, or a check");
  CHECK(refused(true, "[]") == "TunnelOrder: no object");
  CHECK(refused(true, R"({"do":"raise"})") == "TunnelOrder: unknown, or out of order");
  CHECK(refused(true, R"({"do":"open","name":"eth0","port":51820,"me":0})") ==
        "TunnelOrder: open: name, port, number or token");
}

TEST_CASE("a runner without rights says what a tunnel needs") {
  test::RunnerClient client(SORTIE_RUNNER_BINARY, {}, /*unprivileged=*/true);
  REQUIRE(client.prepare(test::make_job({"true"})));
  client.send(wire::TunnelOrder{kOpen});
  const auto error = client.expect<wire::RunnerError>();
  REQUIRE(error);
  CHECK(error->code == "unsupported");
  CHECK(error->message.find("a tunnel needs root or CAP_NET_ADMIN on this host, or sudo without a "
                            "password") != std::string::npos);
}

}  // namespace
}  // namespace sortie::runner::tunnel
