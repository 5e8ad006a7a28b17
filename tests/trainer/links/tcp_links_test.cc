// Tests of links between sites over real sockets: messages of all sizes, successive orders, and
// what goes wrong in transit.
#include "trainer/outer/tcp_links.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "tests/support/captured_stderr.h"
#include "tests/support/text.h"
#include "tests/trainer/links/cut_way.h"
#include "trainer/outer/link_sockets.h"

namespace sortie::trainer::outer {
namespace {

using std::chrono::milliseconds;
using Fault = test::CutWay::Fault;

const std::string kLinkKey(64, '7');

std::unique_ptr<TcpLinks> links_of(const std::string& site, std::int64_t streams = 3) {
  TcpLinksSettings settings;
  settings.site = site;
  settings.host = "127.0.0.1";
  settings.streams = streams;
  settings.alive = milliseconds(200);
  settings.silence = milliseconds(5000);
  settings.connect_limit = milliseconds(20000);
  auto made = TcpLinks::make(settings);
  REQUIRE(made);
  return std::move(*made);
}

std::uint16_t port_of_links(const TcpLinks& links) {
  const std::string address = links.address();
  return static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

training::OuterExchange order_of(std::uint64_t epoch, std::vector<std::string> addresses,
                                 const std::string& key = kLinkKey) {
  training::OuterExchange order;
  order.round = 1;
  order.epoch = epoch;
  order.key = key;
  for (std::size_t i = 0; i < addresses.size(); ++i)
    order.members.push_back(
        {"site" + std::to_string(i), addresses[i], 1.0 / static_cast<double>(addresses.size())});
  return order;
}

std::vector<std::byte> message_of(std::size_t size, std::size_t seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>((i * 31 + i / 251 + seed * 7) & 255);
  return bytes;
}

/// Two sites. Only the first one can be reached, and only through `way`.
struct TwoSites {
  TwoSites() : way(port_of_links(*links[0])) {}

  /// Opens both at once, as sites do. Returns the result of the first site.
  Result<> open(std::uint64_t epoch, const std::string& key_of_second = kLinkKey) {
    auto second = std::async(std::launch::async, [&] {
      return links[1]->open(order_of(epoch, {way.address(), ""}, key_of_second), 1);
    });
    const Result<> first = links[0]->open(order_of(epoch, {way.address(), ""}), 0);
    of_second = second.get();
    return first;
  }

  std::unique_ptr<TcpLinks> links[2] = {links_of("site0"), links_of("site1")};
  test::CutWay way;
  Result<> of_second;
};

TEST_CASE("messages of all sizes and tags arrive as they were, in any order of asking") {
  constexpr std::size_t kSites = 3;
  std::vector<std::unique_ptr<TcpLinks>> links;
  std::vector<std::string> addresses;
  for (std::size_t i = 0; i < kSites; ++i) {
    links.push_back(links_of("site" + std::to_string(i)));
    addresses.push_back(links.back()->address());
  }
  const std::vector<std::size_t> sizes = {
      0, 1, 131071, 131072, 131073, 0, 262144, 5'000'000, std::size_t{64} << 20};
  const auto work = [&](std::size_t self) -> std::string {
    TcpLinks& own = *links[self];
    if (auto opened = own.open(order_of(5, addresses), self); !opened)
      return opened.error().message;
    std::vector<std::vector<std::byte>> sent;
    for (std::size_t peer = 0; peer < kSites; ++peer)
      for (std::size_t i = 0; peer != self && i < sizes.size(); ++i) {
        // Sends the largest sizes between two of the sites only, to save memory.
        const std::size_t size =
            self + peer == 1 ? sizes[i] : std::min(sizes[i], std::size_t{300000});
        sent.push_back(message_of(size, self * 10 + i));
        const auto tag = static_cast<std::uint32_t>(i % 4);
        if (auto done = own.send(peer, tag, sent.back()); !done) return done.error().message;
      }
    for (std::size_t peer = kSites; peer-- > 0;)
      for (std::uint32_t tag = 4; peer != self && tag-- > 0;)
        for (std::size_t i = tag; i < sizes.size(); i += 4) {
          const std::size_t size =
              self + peer == 1 ? sizes[i] : std::min(sizes[i], std::size_t{300000});
          std::vector<std::byte> got(size);
          if (auto done = own.receive(peer, tag, got); !done) return done.error().message;
          if (got != message_of(size, peer * 10 + i)) return "other bytes";
        }
    if (auto done = own.flush(); !done) return done.error().message;
    return "";
  };
  std::vector<std::future<std::string>> sites;
  for (std::size_t i = 0; i < kSites; ++i) sites.push_back(std::async(std::launch::async, work, i));
  for (auto& site : sites) CHECK(site.get() == "");
  const LinkCounters counters = links[0]->counters();
  CHECK(counters.payload_sent == counters.payload_received);
  CHECK(counters.wire_sent > counters.payload_sent);
  CHECK(counters.wire_received > counters.payload_received);
}

TEST_CASE("connections are kept from order to order, and old messages are dropped") {
  TwoSites two;
  REQUIRE(two.open(1));
  REQUIRE(two.of_second);
  const auto old = message_of(700'000, 1), fresh = message_of(700'000, 2);
  REQUIRE(two.links[0]->send(1, 9, old));
  REQUIRE(two.links[0]->flush());  // sent, but never received
  REQUIRE(two.open(2));
  REQUIRE(two.of_second);
  const std::size_t connections = two.way.connections();
  REQUIRE(two.links[0]->send(1, 9, fresh));
  std::vector<std::byte> got(fresh.size());
  REQUIRE(two.links[1]->receive(0, 9, got));
  CHECK(got == fresh);
  CHECK(connections <= 3);
  // If only one of the two has an order yet, what it sends waits for the other.
  auto early = std::async(std::launch::async, [&] {
    const Result<> opened = two.links[0]->open(order_of(3, {two.way.address(), ""}), 0);
    return opened && two.links[0]->send(1, 9, old) && two.links[0]->flush();
  });
  REQUIRE(early.get());
  std::this_thread::sleep_for(milliseconds(100));  // it may have arrived by now; later is fine, too
  REQUIRE(two.links[1]->open(order_of(3, {two.way.address(), ""}), 1));
  REQUIRE(two.links[1]->receive(0, 9, got));
  CHECK(got == old);
  CHECK(two.way.connections() <= 3);
  CHECK(two.links[1]->open(order_of(3, {two.way.address(), ""}), 1).error().code ==
        ErrorCode::protocol);
}

TEST_CASE("a cut, silence, altered and repeated bytes: the peer is named, the next order works") {
  struct Row {
    Fault fault;
    ErrorCode code;
    std::string says;
    std::string or_says = says;
  };
  // Bytes in flight decide whether a cut connection is closed or reset.
  for (const Row& row :
       {Row{Fault::cut, ErrorCode::lost, "closed by the other side", "Connection reset by peer"},
        Row{Fault::still, ErrorCode::lost, "silent for 5 s"},
        Row{Fault::flip, ErrorCode::protocol, "record"},
        Row{Fault::replay, ErrorCode::protocol, "record"}}) {
    CAPTURE(row.says);
    TwoSites two;
    REQUIRE(two.open(1));
    REQUIRE(two.of_second);
    const auto sent = message_of(8 << 20, 3);
    std::vector<std::byte> got(sent.size());
    auto sender = std::async(std::launch::async, [&]() -> Result<> {
      for (std::uint32_t i = 0; i < 1000; ++i) {
        SORTIE_TRY(two.links[0]->send(1, i, sent));
        SORTIE_TRY(two.links[0]->flush());
      }
      return {};
    });
    REQUIRE(two.links[1]->receive(0, 0, got));
    two.way.set(row.fault);
    Result<> received;
    for (std::uint32_t i = 1; i < 1000 && received; ++i)
      received = two.links[1]->receive(0, i, got);
    REQUIRE_FALSE(received);
    CHECK(received.error().message.find("link to site site0") == 0);
    const Result<> of_sender = sender.get();
    CHECK_FALSE(of_sender);
    // The altered bytes may have been sent in either direction.
    const auto says = [&](const Result<>& result) {
      return result.error().message.contains(row.says) ||
             result.error().message.contains(row.or_says);
    };
    const bool as_expected = says(received) || says(of_sender);
    CAPTURE(received.error().message);
    CAPTURE(of_sender.error().message);
    CHECK(as_expected);
    CHECK((received.error().code == row.code || of_sender.error().code == row.code));
    two.way.set(Fault::none);
    REQUIRE(two.open(2));
    REQUIRE(two.of_second);
    REQUIRE(two.links[0]->send(1, 0, sent));
    REQUIRE(two.links[1]->receive(0, 0, got));
    CHECK(got == sent);
  }
}

TEST_CASE("who has another key is refused, and who can not be reached is named") {
  TcpLinksSettings settings;
  settings.site = "site1";
  settings.host = "127.0.0.1";
  settings.connect_limit = milliseconds(4000);
  auto second = TcpLinks::make(settings);
  settings.site = "site0";
  auto first = TcpLinks::make(settings);
  REQUIRE(first);
  REQUIRE(second);
  const std::vector<std::string> addresses = {(*first)->address(), (*second)->address()};
  auto other = std::async(std::launch::async, [&] {
    return (*second)->open(order_of(1, addresses, std::string(64, '8')), 1);
  });
  std::optional<test::CapturedStderr> log(std::in_place);
  const Result<> opened = (*first)->open(order_of(1, addresses), 0);
  const std::string lines = log->text();
  log.reset();
  // Each end dialled about eight times with each of its streams. Each is refused in one line.
  CHECK_MESSAGE(test::count_of(lines, "refused: ") >= 1, lines);
  CHECK_MESSAGE(test::count_of(lines, "refused: ") <= 2, lines);
  REQUIRE_FALSE(opened);
  CHECK(opened.error().code == ErrorCode::lost);
  CHECK(opened.error().message.find("link to site site1: neither side has reached the other") == 0);
  CHECK(opened.error().message.find(addresses[1]) != std::string::npos);
  CHECK(opened.error().message.find("outer.port") != std::string::npos);
  CHECK(opened.error().message.find("outer.route = \"launcher\"") != std::string::npos);
  CHECK((*first)->unreached() == 1);
  CHECK_FALSE(other.get());
  second->reset();
  const Result<> alone = (*first)->open(order_of(2, addresses), 0);
  REQUIRE_FALSE(alone);
  CHECK(alone.error().message.find("(" + addresses[1] + ": Connection refused)") !=
        std::string::npos);
  // Who reaches none of several others is itself the cause.
  CHECK_FALSE((*first)->open(order_of(3, {addresses[0], addresses[1], addresses[1]}), 0));
  CHECK((*first)->unreached() == 0);
  // A port that is in use.
  settings.port = port_of_links(**first);
  const auto taken = TcpLinks::make(settings);
  REQUIRE_FALSE(taken);
  CHECK(taken.error().message.find("Address already in use") != std::string::npos);
}

TEST_CASE("strangers on the port hold up nothing") {
  TwoSites two;
  std::vector<Fd> strangers;
  for (int i = 0; i < 20; ++i) {
    auto socket = dial_link(two.links[0]->address());
    REQUIRE(socket);
    strangers.push_back(std::move(*socket));
  }
  for (std::size_t i = 0; i < strangers.size(); i += 2)
    (void)::send(strangers[i].get(), "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL);
  REQUIRE(two.open(1));
  REQUIRE(two.of_second);
  const auto sent = message_of(1000, 3);
  std::vector<std::byte> got(sent.size());
  REQUIRE(two.links[1]->send(0, 1, sent));
  REQUIRE(two.links[0]->receive(1, 1, got));
  CHECK(got == sent);
}

TEST_CASE("cancel ends what waits until the next order") {
  TwoSites two;
  REQUIRE(two.open(1));
  std::vector<std::byte> got(10);
  auto waits = std::async(std::launch::async, [&] { return two.links[0]->receive(1, 0, got); });
  CHECK(waits.wait_for(milliseconds(50)) == std::future_status::timeout);
  two.links[0]->cancel();
  CHECK(waits.get().error().code == ErrorCode::interrupted);
  CHECK(two.links[0]->send(1, 0, got).error().code == ErrorCode::interrupted);
  CHECK(two.links[0]->flush().error().code == ErrorCode::interrupted);
  REQUIRE(two.open(2));
  REQUIRE(two.links[1]->send(0, 0, got));
  CHECK(two.links[0]->receive(1, 0, got));
  auto opens = std::async(std::launch::async, [&] {
    return two.links[0]->open(order_of(3, {two.way.address(), "", ""}), 0);
  });
  CHECK(opens.wait_for(milliseconds(50)) == std::future_status::timeout);
  // open() may not have begun yet, and then forgets an earlier cancel().
  do two.links[0]->cancel();
  while (opens.wait_for(milliseconds(10)) == std::future_status::timeout);
  CHECK(opens.get().error().code == ErrorCode::interrupted);
}

TEST_CASE("what was flushed arrives although its sender leaves; then it has left") {
  TwoSites two;
  REQUIRE(two.open(1));
  REQUIRE(two.of_second);
  const auto sent = message_of(std::size_t{20} << 20, 6);
  auto leaves = std::async(std::launch::async, [&] {
    const bool done = two.links[0]->send(1, 2, sent) && two.links[0]->flush();
    two.links[0].reset();
    return done;
  });
  std::vector<std::byte> got(sent.size());
  REQUIRE(two.links[1]->receive(0, 2, got));
  CHECK(got == sent);
  REQUIRE(leaves.get());
  const Result<> more = two.links[1]->receive(0, 2, got);
  REQUIRE_FALSE(more);
  CHECK(more.error().code == ErrorCode::lost);
}

TEST_CASE("a message of another size than is asked for is an error") {
  TwoSites two;
  REQUIRE(two.open(1));
  REQUIRE(two.of_second);
  const auto sent = message_of(1000, 1);
  std::vector<std::byte> got(999);
  REQUIRE(two.links[0]->send(1, 2, sent));
  const Result<> received = two.links[1]->receive(0, 2, got);
  REQUIRE_FALSE(received);
  CHECK(received.error().code == ErrorCode::protocol);
  CHECK(received.error().message ==
        "link to site site0: message 0 of tag 2 has 1000 bytes, not 999");
}

}  // namespace
}  // namespace sortie::trainer::outer
