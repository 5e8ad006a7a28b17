// Ctrl-C: once with the grace, twice at once, in every phase of a run.
#include <doctest/doctest.h>

#include <csignal>

#include "tests/launcher/launch.h"
#include "tests/launcher/scripts.h"
#include "tests/support/patience.h"

namespace sortie::launcher {
namespace {

using boost::asio::awaitable;
using std::chrono::milliseconds;
using test::after_start;
using test::FakeRunner;
using test::Launch;
using test::run_until_stopped;

TEST_CASE("once: all ranks are stopped with the grace, exit code 130") {
  Launch launch({{"h1", {0}}, {"h2", {0, 1}}});
  launch.host("h1").script = after_start([&](FakeRunner&) { launch.interrupt(SIGINT); });
  launch.host("h2").script = run_until_stopped;
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 130);
  CHECK(verdict.text == "interrupted by SIGINT");
  CHECK(verdict.ended_after == 3);
  for (const char* name : {"h1", "h2"}) {
    const auto stops = launch.runner(name).all<wire::Stop>();
    REQUIRE(stops.size() == 1);
    CHECK(stops[0].grace_ms == 100);
    CHECK(stops[0].reason == "interrupted by SIGINT");
    CHECK(launch.runner(name).all<wire::Goodbye>().size() == 1);
  }
  CHECK(launch.shown.find("SIGINT: stopping all ranks (TERM, then KILL after 0.1 s); once more") !=
        std::string::npos);
}

TEST_CASE("twice: no grace is left") {
  Launch launch({{"h", {0}}});
  struct Stubborn {
    static awaitable<void> run(FakeRunner& runner, Launch* launch) {
      co_await runner.start();
      launch->interrupt(SIGINT);
      co_await runner.until<wire::Stop>();
      launch->interrupt(SIGINT);
      co_await runner.until<wire::Stop>();
      co_await runner.finish(true, SIGKILL);
    }
  };
  launch.job.runner.grace = milliseconds(60000);
  launch.host("h").script = [&](FakeRunner& runner) { return Stubborn::run(runner, &launch); };
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 130);
  const auto stops = launch.runner("h").all<wire::Stop>();
  REQUIRE(stops.size() == 2);
  CHECK(stops[0].grace_ms == 60000);
  CHECK(stops[1].grace_ms == 0);
  CHECK(launch.shown.find("killing all ranks now\n") != std::string::npos);
  CHECK(launch.ran < test::patient(milliseconds(4000)));
}

TEST_CASE("TERM and HUP end a run the same way, with their own codes") {
  for (const int signal : {SIGTERM, SIGHUP}) {
    Launch launch({{"h", {0}}});
    launch.host("h").script = after_start([&](FakeRunner&) { launch.interrupt(signal); });
    const Verdict verdict = launch.run();
    CHECK(verdict.exit_code == 128 + signal);
    CHECK(verdict.ended_after == 1);
  }
}

TEST_CASE("after a failure, Ctrl-C shortens the end and changes no verdict") {
  Launch launch({{"h1", {0}}, {"h2", {0}}});
  struct Slow {
    static awaitable<void> run(FakeRunner& runner, Launch* launch) {
      co_await runner.start();
      co_await runner.until<wire::Stop>();
      launch->interrupt(SIGINT);
      co_await runner.until<wire::Stop>();
      co_await runner.finish(true, SIGKILL);
    }
  };
  launch.host("h1").script = after_start([](FakeRunner& runner) { runner.exit_rank(0, 5); });
  launch.host("h2").script = [&](FakeRunner& runner) { return Slow::run(runner, &launch); };
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 5);
  CHECK(launch.runner("h2").all<wire::Stop>().back().grace_ms == 0);
}

TEST_CASE("while a host is being connected: at once, and nothing has started") {
  Launch launch({{"h1", {0}}, {"h2", {0}}});
  struct Connected {
    static awaitable<void> run(FakeRunner& runner, Launch* launch) {
      launch->interrupt(SIGINT);
      co_await runner.until<wire::Start>();
    }
  };
  launch.host("h1").script = [&](FakeRunner& runner) { return Connected::run(runner, &launch); };
  launch.host("h2").connect_delay = milliseconds(60000);
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 130);
  CHECK(launch.ran < test::patient(milliseconds(4000)));
  CHECK(launch.runner("h1").all<wire::JobSpec>().empty());
  CHECK(launch.runner("h1").closed_by_launcher);
}

TEST_CASE("while hosts get ready: at once, and nothing has started") {
  Launch launch({{"h1", {0}}, {"h2", {0}}});
  launch.job.runner.startup_timeout = milliseconds(60000);
  struct Asked {
    static awaitable<void> run(FakeRunner& runner, Launch* launch) {
      co_await runner.until<wire::JobSpec>();
      launch->interrupt(SIGINT);
      co_await runner.until<wire::Start>();
    }
  };
  launch.host("h1").script = run_until_stopped;
  launch.host("h2").script = [&](FakeRunner& runner) { return Asked::run(runner, &launch); };
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 130);
  CHECK(launch.ran < test::patient(milliseconds(4000)));
  for (const char* name : {"h1", "h2"}) {
    CHECK(launch.runner(name).all<wire::Start>().empty());
    CHECK(launch.runner(name).closed_by_launcher);
  }
}

TEST_CASE("when all ranks have ended, a late Ctrl-C does not make it a failure") {
  Launch launch({{"h", {0}}});
  struct Late {
    static awaitable<void> run(FakeRunner& runner, Launch* launch) {
      co_await runner.start();
      runner.exit_rank(0, 0);
      runner.send(wire::Finished{});
      co_await runner.until<wire::Goodbye>();
      launch->interrupt(SIGINT);
      co_await runner.sleep(milliseconds(50));
      runner.end();
    }
  };
  launch.host("h").script = [&](FakeRunner& runner) { return Late::run(runner, &launch); };
  CHECK(launch.run().exit_code == 0);
}

}  // namespace
}  // namespace sortie::launcher
