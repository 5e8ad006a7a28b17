// Streams between hosts through the launcher: what is forwarded, what is refused, how streams end.
#include <doctest/doctest.h>

#include <deque>
#include <set>

#include "launcher/sites/forward_router.h"

namespace sortie::launcher {
namespace {

using namespace wire;

/// A router whose hosts keep the messages that they get.
struct Wires {
  std::map<std::string, std::deque<Message>> got;
  std::set<std::string> gone;
  ForwardRouter router{[this](const std::string& host, const Message& message) {
    if (gone.contains(host) || !got.contains(host)) return false;
    got[host].push_back(message);
    return true;
  }};

  Wires() { got = {{"h1", {}}, {"h2", {}}}; }
  template <class T>
  T next(const std::string& host) {
    REQUIRE_FALSE(got[host].empty());
    const Message message = got[host].front();
    got[host].pop_front();
    REQUIRE(std::holds_alternative<T>(message));
    return std::get<T>(message);
  }
  bool quiet() const { return got.at("h1").empty() && got.at("h2").empty(); }
  /// Opens both ends of a stream; returns the number under which h2 knows it.
  std::uint64_t open(std::uint64_t id) {
    router.take("h1", ForwardOpen{id, "h2", 7000});
    router.take("h1", ForwardCredit{id, kForwardWindow});
    const auto order = next<ForwardOpen>("h2");
    CHECK((order.host.empty() && order.port == 7000));
    CHECK(next<ForwardCredit>("h2").bytes == kForwardWindow);
    router.take("h2", ForwardCredit{order.id, kForwardWindow});
    CHECK(next<ForwardCredit>("h1").id == id);
    return order.id;
  }
};

}  // namespace

TEST_CASE("forwards: data goes both ways under each host's own number") {
  Wires wires;
  const std::uint64_t there = wires.open(5), other = wires.open(6);
  CHECK((there & kForwardByLauncher) != 0);
  CHECK(other != there);
  wires.router.take("h1", ForwardData{5, "ping"});
  const auto ping = wires.next<ForwardData>("h2");
  CHECK((ping.id == there && ping.bytes == "ping"));
  wires.router.take("h2", ForwardData{other, "pong"});
  const auto pong = wires.next<ForwardData>("h1");
  CHECK((pong.id == 6 && pong.bytes == "pong"));
  CHECK((wires.router.streams() == 2 && wires.router.bytes() == 8));
  wires.router.take("h2", ForwardClose{there, "done"});
  CHECK(wires.next<ForwardClose>("h1").why == "done");
  // Data that was in transit is dropped.
  wires.router.take("h1", ForwardData{5, "late"});
  CHECK((wires.quiet() && wires.router.streams() == 1));
}

TEST_CASE(
    "forwards: a host of another run, one that is gone, and numbers of the launcher are refused") {
  Wires wires;
  wires.gone.insert("h2");
  for (const ForwardOpen& order :
       {ForwardOpen{1, "h3", 7000}, ForwardOpen{2, "h2", 7000}, ForwardOpen{3, "h1", 0},
        ForwardOpen{4, "h1", 70000}, ForwardOpen{kForwardByLauncher | 5, "h1", 7000}}) {
    wires.router.take("h1", order);
    const auto refused = wires.next<ForwardClose>("h1");
    CHECK((refused.id == order.id && !refused.why.empty()));
  }
  CHECK((wires.quiet() && wires.router.streams() == 0));
}

TEST_CASE(
    "forwards: who sends more than was granted, or grants more than the window, loses the stream") {
  for (const bool data : {true, false}) {
    Wires wires;
    const std::uint64_t there = wires.open(5);
    if (data) {
      std::uint64_t sent = 0;
      for (const std::string piece(kMaxForwardBytes, 'x'); sent < kForwardWindow;
           sent += piece.size())
        wires.router.take("h1", ForwardData{5, piece});
      for (; sent > 0; sent -= kMaxForwardBytes) wires.next<ForwardData>("h2");
      wires.router.take("h1", ForwardData{5, "x"});
    } else {
      wires.router.take("h1", ForwardCredit{5, 1});
    }
    CHECK(wires.next<ForwardClose>("h2").id == there);
    CHECK(wires.next<ForwardClose>("h1").id == 5);
    CHECK((wires.quiet() && wires.router.streams() == 0));
  }
}

TEST_CASE("forwards: a host that is gone ends its streams, and no others") {
  Wires wires;
  wires.got["h3"] = {};
  wires.open(5);
  wires.router.take("h3", ForwardOpen{5, "h1", 7001});
  CHECK(wires.next<ForwardOpen>("h1").port == 7001);
  wires.router.host_gone("h2");
  CHECK(wires.next<ForwardClose>("h1").why == "host h2 is gone");
  CHECK((wires.quiet() && wires.router.streams() == 1));
}

TEST_CASE("forwards: a host has so many streams at most") {
  Wires wires;
  for (std::uint64_t id = 1; id <= kMaxForwards; ++id)
    wires.router.take("h1", ForwardOpen{id, "h2", 1});
  CHECK(wires.router.streams() == kMaxForwards);
  wires.router.take("h1", ForwardOpen{kMaxForwards + 1, "h2", 1});
  CHECK(wires.next<ForwardClose>("h1").why == "more than 256 streams");
}

}  // namespace sortie::launcher
