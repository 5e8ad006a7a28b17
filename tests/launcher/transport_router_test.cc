// The router: which transport reaches a host, and what happens to released connections.
#include "launcher/host/transport_router.h"

#include <doctest/doctest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <optional>

#include "tests/launcher/launch.h"

namespace sortie::launcher {
namespace {

namespace asio = boost::asio;
using std::chrono::milliseconds;

struct Ways {
  asio::io_context io{1};
  test::FakeTransport remote{io.get_executor()}, local{io.get_executor()};
  TransportRouter router{std::make_unique<test::Borrowed>(remote),
                         std::make_unique<test::Borrowed>(local), milliseconds(100)};

  Ways() {
    remote.host("h").after_loss = [](test::FakeRunner&) -> asio::awaitable<void> { co_return; };
  }
  std::unique_ptr<Connection> reach(const std::string& host) {
    auto connection = finished(router.connect(host));
    REQUIRE(connection);
    return std::move(*connection);
  }
  std::unique_ptr<Channel> begin(Connection& connection) {
    auto channel = finished(connection.exec("command"));
    REQUIRE(channel);
    return std::move(*channel);
  }
  template <class T>
  T finished(asio::awaitable<T> work) {
    std::optional<T> done;
    asio::co_spawn(io, std::move(work), [&](std::exception_ptr error, T result) {
      CHECK_FALSE(error);
      done = std::move(result);
    });
    io.restart();
    while (!done && io.run_one_for(std::chrono::seconds(10)) > 0) {
    }
    REQUIRE(done);
    return std::move(*done);
  }
};

TEST_CASE("localhost goes one way, every other name the other") {
  Ways ways;
  const auto here = ways.reach("localhost"), there = ways.reach("localhost.example");
  CHECK(ways.local.connected == 1);
  CHECK(ways.remote.connected == 1);
}

TEST_CASE("a released connection serves the next one; a closed one does not") {
  Ways ways;
  auto first = ways.reach("h");
  ways.begin(*first).reset();
  first->release();
  first.reset();
  CHECK(ways.router.idle() == 1);
  auto second = ways.reach("h");
  CHECK(ways.router.idle() == 0);
  CHECK(second->peer_address() == "192.0.2.1");
  CHECK(second->stages().empty());
  const auto channel = ways.begin(*second);
  CHECK(ways.remote.connected == 1);
  auto beside = ways.reach("h");  // the first one is in use
  CHECK(ways.remote.connected == 2);
  beside->close();
  second->close();
  CHECK(ways.router.idle() == 0);
  ways.reach("h");
  CHECK(ways.remote.connected == 3);
}

TEST_CASE("one that was never tried again is not kept twice") {
  Ways ways;
  auto first = ways.reach("h");
  ways.begin(*first).reset();
  first->release();
  ways.reach("h")->release();
  CHECK(ways.router.idle() == 0);
}

TEST_CASE("a kept connection that has died is replaced at its first command") {
  Ways ways;
  auto first = ways.reach("h");
  ways.begin(*first).reset();
  first->release();
  ways.remote.break_connections();
  auto second = ways.reach("h");
  CHECK(ways.remote.connected == 1);
  const auto channel = ways.begin(*second);
  CHECK(ways.remote.connected == 2);

  second->release();
  ways.remote.break_connections();
  ways.remote.host("h").connect_error = Error{ErrorCode::auth, "no key"};
  auto third = ways.reach("h");
  const auto refused = ways.finished(third->exec("command"));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::auth);
}

TEST_CASE("a link that is cut holds back what is read and written, and lets it pass afterwards") {
  Ways ways;
  auto connection = ways.reach("h");
  auto channel = ways.begin(*connection);
  auto other = ways.reach("g");
  constexpr milliseconds kCut(150);
  const auto begun = std::chrono::steady_clock::now();
  ways.router.cut_link("h", kCut);
  CHECK(ways.finished(channel->write("x")));
  CHECK(std::chrono::steady_clock::now() - begun >= kCut);
  // A channel that is closed during the cut does not wait for its end.
  ways.router.cut_link("h", std::chrono::hours(1));
  std::optional<Result<>> sent;
  asio::co_spawn(ways.io, channel->write("x"),
                 [&](std::exception_ptr, Result<> result) { sent = std::move(result); });
  ways.io.restart();
  ways.io.poll();
  CHECK_FALSE(sent);
  channel->close();
  ways.io.restart();
  while (!sent && ways.io.run_one_for(std::chrono::seconds(10)) > 0) {
  }
  REQUIRE(sent);
  CHECK(sent->error().code == ErrorCode::lost);
}

TEST_CASE("a host behind a link that is cut can not be reached; others can") {
  Ways ways;
  auto connection = ways.reach("h");
  ways.router.cut_link("h", std::chrono::hours(1));
  auto refused = ways.finished(ways.router.connect("h"));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::connect);
  auto started = ways.finished(connection->exec("command"));
  REQUIRE_FALSE(started);
  CHECK(started.error().code == ErrorCode::lost);
  CHECK(ways.finished(ways.router.connect("g")));
}

}  // namespace
}  // namespace sortie::launcher
