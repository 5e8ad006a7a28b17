// A host whose connection breaks while its runner holds the ranks: it is reconnected in place, or
// lost if its runner says so or the hold expires.
#include <doctest/doctest.h>

#include <csignal>

#include "common/base/exit_code.h"
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

void write_out(FakeRunner& runner, std::uint32_t rank, std::string text) {
  runner.send(wire::Output{rank, wire::Stream::out, std::move(text)});
}

/// Rank 0 writes "abc", then the connection breaks.
void write_and_break_off(FakeRunner& runner) {
  write_out(runner, 0, "abc");
  runner.send(wire::RankEvent{0, R"({"type":"note","n":1})"});
  runner.cut("Connection reset by peer");
}

struct Fixture {
  explicit Fixture(std::string hold = "hold 20s") : launch({{"h1", {0}}, {"h2", {0}}}) {
    launch.job.runner.on_launcher_loss = std::move(hold);
    launch.host("h1").script = after_start(write_and_break_off);
    launch.host("h2").script = test::succeed;
  }
  Launch launch;
};

TEST_CASE("the connection to a host breaks: it is made again, and output goes on at its byte") {
  struct Holder {
    static awaitable<void> run(FakeRunner& runner) {
      const bool asked = co_await runner.adopted();
      if (!asked) co_return;
      write_out(runner, 0, "def");
      runner.send(wire::RankEvent{0, R"({"type":"note","n":2})"});
      runner.exit_rank(0, 0);
      co_await runner.finish(false);
    }
  };
  Fixture with;
  Launch& launch = with.launch;
  launch.host("h1").after_loss = Holder::run;
  const Verdict verdict = launch.run();
  CHECK_MESSAGE(verdict.exit_code == 0, verdict.text);
  CHECK(test::read_text(launch.run_folder / "logs/rank-0.out") == "abcdef");
  const wire::Adopt order = launch.transport.sweeper("h1").all<wire::Adopt>().at(0);
  CHECK(order.epoch == 1);  // the same supervisor
  CHECK(order.link == 2);   // over another connection
  CHECK(order.events == 1);
  CHECK(order.log_sizes.at(0).bytes == 3);
  CHECK(launch.events_named("link_lost").size() == 1);
  CHECK(launch.events_named("link_restored").size() == 1);
  CHECK(launch.events_named("host_lost").empty());
  CHECK(launch.shown.find("h1: lost: Connection reset by peer\nthe ranks there are held for 20s") !=
        std::string::npos);
  CHECK(launch.shown.find("h1: connected again after ") != std::string::npos);
  // Events from both connections, each once.
  std::istringstream metrics(test::read_text(launch.run_folder / "metrics.jsonl"));
  int next = 1;
  for (std::string line; std::getline(metrics, line); ++next)
    CHECK(nlohmann::json::parse(line)["n"] == next);
  CHECK(next == 3);
}

TEST_CASE("attempts that fail are repeated under higher link numbers") {
  struct Holder {
    static awaitable<void> run(FakeRunner& runner, std::shared_ptr<int> attempt) {
      if (++*attempt < 3) {
        co_await runner.until<wire::Adopt>();
        if (*attempt == 1) runner.cut("Connection reset by peer");
        runner.send(wire::RunnerError{"io", "socket: Too many open files", -1});
        co_return;
      }
      const bool asked = co_await runner.adopted();
      if (asked) co_await runner.finish(false);
    }
  };
  Fixture with;
  const auto attempt = std::make_shared<int>(0);
  with.launch.host("h1").after_loss = [attempt](FakeRunner& runner) {
    return Holder::run(runner, attempt);
  };
  const Verdict verdict = with.launch.run();
  CHECK_MESSAGE(verdict.exit_code == 0, verdict.text);
  CHECK(with.launch.transport.sweeper("h1").all<wire::Adopt>().at(0).link == 4);
  CHECK(with.launch.events_named("link_restored").at(0)["attempts"] == 3);
}

TEST_CASE("a host that does not hold the ranks any more is lost at once") {
  struct Gone {
    static awaitable<void> run(FakeRunner& runner) {
      const auto order = co_await runner.next();  // Hello
      if (!order) co_return;
      const auto what = co_await runner.next();
      if (what && std::holds_alternative<wire::Sweep>(*what)) runner.send(wire::Swept{});
      if (what && std::holds_alternative<wire::Adopt>(*what))
        runner.send(wire::RunnerError{"lost", "no runner holds this run here", -1});
    }
  };
  Fixture with;
  with.launch.host("h1").after_loss = Gone::run;
  with.launch.sweep_reach = milliseconds(20000);
  with.launch.host("h2").script = run_until_stopped;
  const Verdict verdict = with.launch.run();
  CHECK(verdict.exit_code == kExitLost);
  CHECK(verdict.text == "h1: lost: Connection reset by peer; no runner holds this run here");
  CHECK(with.launch.events_named("swept").size() == 1);
  CHECK(with.launch.ran < test::patient(milliseconds(5000)));
}

TEST_CASE("a lost host counts from the break of its connection: what peers do then is no cause") {
  struct Gone {
    static awaitable<void> run(FakeRunner& runner) {
      const bool asked = co_await runner.until<wire::Adopt>();
      if (asked) runner.send(wire::RunnerError{"lost", "no runner holds this run here", -1});
    }
  };
  struct Notices {
    static awaitable<void> run(FakeRunner& runner) {
      const bool started = co_await runner.start();
      if (!started) co_return;
      co_await runner.sleep(milliseconds(150));
      runner.exit_rank(1, 1);
      co_await runner.finish(false);
    }
  };
  // The answer of h1 comes within the settle time, and after it.
  for (const milliseconds delay : {milliseconds(500), kSettleTime + milliseconds(800)}) {
    CAPTURE(delay.count());
    Fixture with;
    with.launch.host("h1").after_loss = Gone::run;
    with.launch.host("h1").reconnect_delay = delay;
    with.launch.host("h2").script = Notices::run;
    const Verdict verdict = with.launch.run();
    CHECK(verdict.exit_code == kExitLost);
    CHECK(verdict.text == "h1: lost: Connection reset by peer; no runner holds this run here");
    const auto causes = with.launch.events_named("cause");
    REQUIRE(causes.size() == 1);
    CHECK(causes[0]["died_at"] < with.launch.events_named("host_lost").at(0)["time"]);
  }
}

TEST_CASE("a host that is not reached within the hold is lost when it is over") {
  Fixture with("hold 1s");
  with.launch.host("h2").script = run_until_stopped;
  const Verdict verdict = with.launch.run();  // connections are refused
  CHECK(verdict.exit_code == kExitLost);
  CHECK_MESSAGE(
      verdict.text.starts_with("h1: lost: Connection reset by peer; not reached again in "),
      verdict.text);
  CHECK(verdict.text.ends_with("; the last one: connect: Connection refused"));
  CHECK(with.launch.took >= milliseconds(1000));
}

TEST_CASE("without a hold a broken connection ends the run as ever") {
  Fixture with("kill");
  with.launch.host("h2").script = run_until_stopped;
  CHECK(with.launch.run().exit_code == kExitLost);
  CHECK(with.launch.events_named("link_lost").empty());
}

TEST_CASE("a stop that comes while a host is away reaches it when it is back") {
  struct Holder {
    static awaitable<void> run(FakeRunner& runner) {
      const bool asked = co_await runner.adopted();
      if (!asked) co_return;
      const bool told = co_await runner.until<wire::Stop>();
      if (told) co_await runner.finish(true, SIGTERM);
    }
  };
  struct Fails {
    static awaitable<void> run(FakeRunner& runner) {
      const bool started = co_await runner.start();
      if (!started) co_return;
      co_await runner.sleep(milliseconds(100));
      runner.exit_rank(1, 3);
      co_await runner.finish(false);
    }
  };
  Fixture with;
  with.launch.job.runner.grace = milliseconds(2000);
  with.launch.host("h1").after_loss = Holder::run;
  with.launch.host("h1").reconnect_delay = milliseconds(400);
  with.launch.host("h2").script = Fails::run;
  const Verdict verdict = with.launch.run();
  CHECK(verdict.exit_code == 3);
  CHECK(with.launch.events_named("link_restored").size() == 1);
  CHECK(with.launch.transport.sweeper("h1").all<wire::Stop>().size() == 1);
}

TEST_CASE(
    "a host that is away when a rank has left without MPI_Finalize: its ranks may have ended") {
  const auto leave = [](FakeRunner& runner, std::uint32_t rank) {
    wire::RankExited exited;
    exited.rank = rank;
    exited.not_finalized = 1;
    runner.end_rank(exited);
  };
  Fixture with;
  with.launch.limit = std::chrono::seconds(30);
  with.launch.host("h1").reconnect_delay = milliseconds(5500);
  with.launch.host("h2").script = [leave](FakeRunner& runner) -> awaitable<void> {
    const bool started = co_await runner.start();
    if (!started) co_return;
    co_await runner.sleep(milliseconds(100));  // h1 is away
    leave(runner, 1);
    co_await runner.finish(false);
  };
  int code = 0;
  SUBCASE("they have") {
    with.launch.host("h1").after_loss = [leave](FakeRunner& runner) -> awaitable<void> {
      const bool asked = co_await runner.adopted();
      if (!asked) co_return;
      leave(runner, 0);
      co_await runner.finish(false);
    };
  }
  SUBCASE("they have not") {
    code = 1;
    with.launch.host("h1").after_loss = [](FakeRunner& runner) -> awaitable<void> {
      const bool asked = co_await runner.adopted();
      const bool told = asked && co_await runner.until<wire::Stop>();
      if (told) co_await runner.finish(true, SIGTERM);
    };
  }
  const Verdict verdict = with.launch.run();
  CHECK_MESSAGE(verdict.exit_code == code, verdict.text);
  CHECK(with.launch.events_named("link_restored").size() == 1);
  CHECK(with.launch.events_named("cause").size() == static_cast<std::size_t>(code));
}

TEST_CASE("a connection that breaks after the last rank of its host: its runner is let go") {
  Fixture with;
  Launch& launch = with.launch;
  launch.host("h1").script = [](FakeRunner& runner) -> awaitable<void> {
    const bool started = co_await runner.start();
    if (!started) co_return;
    runner.exit_rank(0, 0);
    runner.send(wire::Finished{});
    runner.cut("Connection reset by peer");
  };
  launch.host("h2").script = [](FakeRunner& runner) -> awaitable<void> {
    const bool started = co_await runner.start();
    if (!started) co_return;
    co_await runner.sleep(milliseconds(200));
    co_await runner.finish(false);
  };
  bool told = false;
  SUBCASE("it is reached again") {
    launch.host("h1").after_loss = [&told](FakeRunner& runner) -> awaitable<void> {
      const bool asked = co_await runner.adopted();
      if (!asked) co_return;
      runner.exit_rank(0, 0);
      runner.send(wire::Finished{});
      told = co_await runner.until<wire::Goodbye>();
      runner.end();
    };
    const Verdict verdict = launch.run();
    CHECK_MESSAGE(verdict.exit_code == 0, verdict.text);
    CHECK(told);
    CHECK(launch.events_named("unconfirmed").empty());
    CHECK(launch.events_named("rank_exited").size() == 2);
  }
  SUBCASE("it is not reached: the runner that stays is named") {
    const Verdict verdict = launch.run();  // connections are refused
    CHECK_MESSAGE(verdict.exit_code == 0, verdict.text);
    CHECK(launch.events_named("unconfirmed").at(0)["host"] == "h1");
    CHECK(
        launch.shown.contains("h1: its connection broke after its ranks had ended, and it is not "
                              "reached again: its runner exits after a hold of 20s"));
  }
}

TEST_CASE("twice Ctrl-C does not wait for a host that is away") {
  Fixture with("hold 60s");
  Launch& launch = with.launch;
  struct Interrupts {
    static awaitable<void> run(FakeRunner& runner, Launch& launch) {
      const bool started = co_await runner.start();
      if (!started) co_return;
      co_await runner.sleep(milliseconds(200));
      launch.interrupt(SIGINT);
      launch.interrupt(SIGINT);
      co_await runner.until<wire::Stop>();
      co_await runner.finish(true, SIGTERM);
    }
  };
  launch.host("h2").script = [&launch](FakeRunner& runner) {
    return Interrupts::run(runner, launch);
  };
  launch.sweep_reach = milliseconds(60000);
  CHECK(launch.run().exit_code == 130);
  CHECK(launch.ran < test::patient(milliseconds(3000)));
  // What may go on there is said.
  CHECK(
      launch.shown.contains("h1: cleanup is not confirmed: interrupted before the host was "
                            "reached; a runner that is alive ends its ranks by itself after a "
                            "hold of 1m00s"));
  CHECK(launch.events_named("unconfirmed").size() == 1);
}

}  // namespace
}  // namespace sortie::launcher
