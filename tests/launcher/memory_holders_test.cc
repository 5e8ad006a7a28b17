// Holders of a run's memory over fake hosts in memory: which are asked, which are released, and
// what happens when one dies, refuses or is unreachable.
#include "launcher/run/memory_holders.h"

#include <doctest/doctest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/launcher/scripts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using Doing = boost::asio::awaitable<void>;
using std::chrono::milliseconds;
using test::contains;
using test::FakeHost;
using test::FakeRunner;
using test::in_turn;
using test::keep_memory;

/// The holders of one run, with short timeouts.
struct Holding {
  Holding() {
    runner.startup_timeout = std::chrono::seconds(30);
    runner.heartbeat_interval = milliseconds(20);
    runner.heartbeat_timeout = milliseconds(300);
    runner.on_launcher_loss = "hold 7s";
    test::write_text(dir / "runner", "#!/bin/sh\n");
    auto opened = RunnerBinary::open(dir / "runner");
    REQUIRE(opened);
    binary.emplace(std::move(*opened));
    holders.emplace(
        MemoryHolders::Parts{io.get_executor(), transport, *binary, runner, "run-1", 3,
                             [this](const std::string& text) { said.push_back(text); }});
  }

  /// Runs `task` to completion. Fails the test after ten seconds.
  void finish(Doing task) {
    bool done = false;
    begin(std::move(task), done);
    until([&] { return done; });
  }
  void begin(Doing task, bool& done) {
    boost::asio::co_spawn(io, std::move(task), [&done](const std::exception_ptr& error) {
      if (!error) done = true;
    });
  }
  void until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    io.restart();
    while (!condition() && std::chrono::steady_clock::now() < deadline)
      io.run_one_for(milliseconds(20));
    REQUIRE(condition());
  }

  FakeHost& host(const std::string& name) { return transport.host(name); }
  FakeRunner& first(const std::string& name) { return transport.runner(name); }
  FakeRunner& next(const std::string& name) { return transport.sweeper(name); }

  test::ScopedTempDir dir;
  boost::asio::io_context io{1};
  test::FakeTransport transport{io.get_executor()};
  config::RunnerConfig runner;
  std::optional<RunnerBinary> binary;
  std::vector<std::string> said;
  std::optional<MemoryHolders> holders;
};

/// Dies as soon as it holds the memory.
Doing holds_and_dies(FakeRunner& runner) {
  const bool held = co_await runner.hold_memory();
  if (held) runner.end();
}

Doing refuses_memory(FakeRunner& runner) {
  const bool greeted = co_await runner.until<wire::Hello>();
  if (!greeted) co_return;
  runner.send(wire::Hello{wire::kProtocolVersion, "build"});
  const bool asked = co_await runner.until<wire::HoldMemory>();
  if (!asked) co_return;
  runner.send(wire::RunnerError{"io", "/dev/shm: no memory file system is mounted there", -1});
  runner.end();
}

/// Ignores Goodbye.
Doing never_ends(FakeRunner& runner) {
  const bool held = co_await runner.hold_memory();
  if (held) co_await runner.until<wire::Sweep>();
}

TEST_CASE("holders: one on each host, told what it needs to know, and waited for at the end") {
  Holding holding;
  bool removed = false;
  holding.host("h1").script = keep_memory;
  holding.host("h2").script = [&removed](FakeRunner& runner) {
    struct Slow {
      static Doing run(FakeRunner& runner, bool& removed) {
        const bool held = co_await runner.hold_memory();
        if (!held) co_return;
        const bool told = co_await runner.until<wire::Goodbye>();
        if (!told) co_return;
        co_await runner.sleep(milliseconds(200));
        removed = true;
        runner.end();
      }
    };
    return Slow::run(runner, removed);
  };
  holding.finish(holding.holders->hold({"h1", "h2"}));
  for (const char* name : {"h1", "h2"}) {
    const auto orders = holding.first(name).all<wire::HoldMemory>();
    REQUIRE(orders.size() == 1);
    CHECK(orders[0].run_id == "run-1");
    CHECK(orders[0].host == name);
    CHECK(orders[0].epoch == 3);
    CHECK(orders[0].hold_ms == 7000);
    CHECK(orders[0].heartbeat_timeout_ms == 300);
  }
  // The next attempt keeps the same holders.
  holding.finish(holding.holders->hold({"h1", "h2"}));
  CHECK(holding.transport.connected == 2);
  CHECK(holding.first("h1").all<wire::Goodbye>().empty());
  holding.finish(holding.holders->release());
  CHECK(removed);
  for (const char* name : {"h1", "h2"}) CHECK(holding.first(name).all<wire::Goodbye>().size() == 1);
  CHECK(holding.said.empty());
}

TEST_CASE("holders: a host that the run goes on without is let go, one that comes is held") {
  Holding holding;
  for (const char* name : {"h1", "h2", "s1"}) holding.host(name).script = keep_memory;
  holding.finish(holding.holders->hold({"h1", "h2"}));
  holding.finish(holding.holders->hold({"h2", "s1"}));
  holding.until([&] { return !holding.first("h1").all<wire::Goodbye>().empty(); });
  CHECK(holding.first("h2").all<wire::Goodbye>().empty());
  CHECK(holding.first("s1").all<wire::HoldMemory>().size() == 1);
  CHECK(holding.transport.connected == 3);
}

TEST_CASE("holders: one that dies is followed by another one, and nobody has to know") {
  Holding holding;
  in_turn(holding.host("h1"), {holds_and_dies, keep_memory});
  holding.finish(holding.holders->hold({"h1"}));
  holding.until([&] {
    return holding.transport.connected == 2 &&
           holding.next("h1").all<wire::HoldMemory>().size() == 1;
  });
  holding.finish(holding.holders->hold({"h1"}));
  CHECK(holding.transport.connected == 2);
  CHECK(holding.said.empty());
  holding.finish(holding.holders->release());
  CHECK(holding.next("h1").all<wire::Goodbye>().size() == 1);
}

TEST_CASE("holders: a frozen one is silent, and followed by another one") {
  Holding holding;
  struct Frozen {
    static Doing run(FakeRunner& runner) {
      const bool held = co_await runner.hold_memory();
      if (held) runner.freeze();
    }
  };
  in_turn(holding.host("h1"), {Frozen::run, keep_memory});
  holding.finish(holding.holders->hold({"h1"}));
  holding.until([&] { return holding.transport.connected == 2; });
  CHECK(holding.first("h1").closed_by_launcher);
}

TEST_CASE("holders: a refusal is told and not tried again before the next attempt") {
  Holding holding;
  in_turn(holding.host("h1"), {holds_and_dies, refuses_memory, keep_memory});
  holding.finish(holding.holders->hold({"h1"}));
  holding.until([&] { return !holding.said.empty(); });
  CHECK(holding.said ==
        std::vector<std::string>{"h1: no memory is held for checkpoints there: /dev/shm: no memory "
                                 "file system is mounted there"});
  CHECK(holding.transport.connected == 2);
  holding.finish(holding.holders->hold({"h1"}));
  CHECK(holding.transport.connected == 3);
  CHECK(holding.said.size() == 1);
}

TEST_CASE("holders: a host that is not reached is told, the others are held") {
  Holding holding;
  holding.host("h1").connect_error = Error{ErrorCode::auth, "no key"};
  holding.host("h2").script = keep_memory;
  holding.finish(holding.holders->hold({"h1", "h2"}));
  REQUIRE(holding.said.size() == 1);
  CHECK(contains(holding.said[0], "h1: no memory is held for checkpoints there: "));
  CHECK(contains(holding.said[0], "no key"));
  CHECK(holding.first("h2").all<wire::HoldMemory>().size() == 1);
}

TEST_CASE("holders: where no host is reached, and that is known at once, the caller goes on") {
  Holding holding;
  holding.host("h1").connect_error = Error{ErrorCode::config, "no such ProxyCommand"};
  holding.finish(holding.holders->hold({"h1"}));
  REQUIRE(holding.said.size() == 1);
  CHECK(contains(holding.said[0], "no such ProxyCommand"));
}

TEST_CASE("holders: who stops the run does not wait for a host that hangs") {
  Holding holding;
  holding.host("h1").connect_delay = std::chrono::hours(1);
  bool done = false;
  holding.begin(holding.holders->hold({"h1"}), done);
  holding.until([&] { return holding.transport.connecting == 1; });
  CHECK_FALSE(done);
  holding.holders->stop_waiting(false);
  holding.until([&] { return done; });
  holding.finish(holding.holders->release());  // no holder was started
  CHECK(holding.said.empty());
}

TEST_CASE("holders: one that does not end is waited for, unless the end is to come at once") {
  Holding holding;
  holding.host("h1").script = never_ends;
  holding.finish(holding.holders->hold({"h1"}));
  bool done = false;
  holding.begin(holding.holders->release(), done);
  holding.until([&] { return !holding.first("h1").all<wire::Goodbye>().empty(); });
  CHECK_FALSE(done);
  holding.holders->stop_waiting(true);
  holding.until([&] { return done; });
  holding.holders.reset();
  CHECK(holding.first("h1").closed_by_launcher);
}

}  // namespace
}  // namespace sortie::launcher
