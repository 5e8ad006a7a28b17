#include "tests/support/memory_links.h"

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace sortie;
using sortie::testing::MemoryNetwork;

training::OuterExchange order_of(std::uint64_t epoch, const std::vector<std::string>& sites,
                                 std::span<trainer::outer::SiteLinks* const> links) {
  training::OuterExchange order;
  order.epoch = epoch;
  for (std::size_t i = 0; i < sites.size(); ++i)
    order.members.push_back(
        {sites[i], links[i]->address(), 1.0 / static_cast<double>(sites.size())});
  return order;
}

struct TwoSites {
  explicit TwoSites(sortie::testing::MemoryNetworkOptions options = {})
      : network(std::move(options)), a(network.links("a")), b(network.links("b")) {
    open(7);
  }
  void open(std::uint64_t epoch) {
    const std::array both{a.get(), b.get()};
    REQUIRE(a->open(order_of(epoch, {"a", "b"}, both), 0));
    REQUIRE(b->open(order_of(epoch, {"a", "b"}, both), 1));
  }
  MemoryNetwork network;
  std::unique_ptr<trainer::outer::SiteLinks> a, b;
};

std::vector<std::byte> bytes_of(std::size_t size, int value) {
  return std::vector<std::byte>(size, static_cast<std::byte>(value));
}

}  // namespace

TEST_CASE("memory links deliver in order per tag, whatever the delays") {
  TwoSites sites({.max_delay = std::chrono::microseconds(300), .seed = 5});
  std::vector<std::vector<std::byte>> sent;
  for (int i = 0; i < 60; ++i) sent.push_back(bytes_of(static_cast<std::size_t>(i), i));
  std::jthread sender([&] {
    for (std::size_t i = 0; i < sent.size(); ++i)
      CHECK(sites.a->send(1, static_cast<std::uint32_t>(i % 3), sent[i]));
    CHECK(sites.a->flush());
  });
  for (std::size_t tag : {2u, 0u, 1u})
    for (std::size_t i = tag; i < sent.size(); i += 3) {
      std::vector<std::byte> got(sent[i].size());
      REQUIRE(sites.b->receive(0, static_cast<std::uint32_t>(tag), got));
      CHECK(got == sent[i]);
    }
  sender.join();
  CHECK(sites.a->counters().payload_sent == 59 * 60 / 2);
  CHECK(sites.b->counters().payload_received == 59 * 60 / 2);
}

TEST_CASE("memory links tell what broke") {
  TwoSites sites({.silence = std::chrono::milliseconds(50)});
  std::vector<std::byte> four(4), got(4);
  const auto code = [&](Result<> result) {
    REQUIRE(!result);
    CHECK(result.error().message.find("site b") != std::string::npos);
    return result.error().code;
  };
  SUBCASE("silence") {
    CHECK(code(sites.a->receive(1, 0, got)) == ErrorCode::lost);
  }
  SUBCASE("another size") {
    REQUIRE(sites.b->send(0, 0, std::span(four).first(3)));
    CHECK(code(sites.a->receive(1, 0, got)) == ErrorCode::protocol);
  }
  SUBCASE("a flipped bit") {
    sites.network.corrupt_at("b", 1);
    REQUIRE(sites.b->send(0, 0, four));
    REQUIRE(sites.b->send(0, 0, four));
    REQUIRE(sites.a->receive(1, 0, got));
    CHECK(code(sites.a->receive(1, 0, got)) == ErrorCode::protocol);
  }
  SUBCASE("what a site sent before it died arrives, and no more") {
    sites.network.kill_at("b", 1);
    REQUIRE(sites.b->send(0, 0, four));
    CHECK(code(sites.b->send(0, 0, four)) == ErrorCode::interrupted);
    REQUIRE(sites.a->receive(1, 0, got));
    CHECK(code(sites.a->receive(1, 0, got)) == ErrorCode::lost);
    CHECK(code(sites.a->send(1, 0, four)) == ErrorCode::lost);
    sites.b = sites.network.links("b");  // the site comes back
    sites.open(8);
    REQUIRE(sites.b->send(0, 0, four));
    CHECK(sites.a->receive(1, 0, got));
  }
  SUBCASE("a cut link") {
    sites.network.cut("a", "b");
    CHECK(code(sites.a->receive(1, 0, got)) == ErrorCode::lost);
    sites.network.mend("b", "a");
    REQUIRE(sites.b->send(0, 0, four));
    CHECK(sites.a->receive(1, 0, got));
  }
  SUBCASE("a stalled one goes on where it was") {
    sites.network.stall("b");
    REQUIRE(sites.b->send(0, 0, four));
    CHECK(code(sites.a->receive(1, 0, got)) == ErrorCode::lost);
    sites.network.resume("b");
    CHECK(sites.a->receive(1, 0, got));
  }
}

TEST_CASE("memory links drop what belongs to an earlier epoch, and cancel ends a wait") {
  TwoSites sites;
  std::vector<std::byte> old = bytes_of(4, 1), now = bytes_of(4, 2), got(4);
  REQUIRE(sites.a->send(1, 0, old));
  sites.open(8);
  REQUIRE(sites.a->send(1, 0, now));
  REQUIRE(sites.b->receive(0, 0, got));
  CHECK(got == now);
  REQUIRE(sites.a->flush());
  std::jthread other([&] { sites.b->cancel(); });
  const auto ended = sites.b->receive(0, 0, got);
  REQUIRE(!ended);
  CHECK(ended.error().code == ErrorCode::interrupted);
}
