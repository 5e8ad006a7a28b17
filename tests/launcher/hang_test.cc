// A run whose ranks hang, over fake hosts in memory: stacks are requested and kept, and the hang is
// the cause.
#include <doctest/doctest.h>

#include <csignal>

#include "common/base/boot_clock.h"
#include "common/base/exit_code.h"
#include "common/training/progress.h"
#include "launcher/report/report.h"
#include "launcher/view/run_view.h"
#include "tests/launcher/launch.h"
#include "tests/launcher/scripts.h"
#include "tests/support/patience.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using boost::asio::awaitable;
using std::chrono::milliseconds;
using test::FakeRunner;
using test::has;
using test::Launch;
using training::Section;

wire::Heartbeat standing(std::uint32_t rank, Section section, std::uint32_t ms) {
  wire::RankProgress place;
  place.rank = rank;
  place.step = 12;
  place.section = static_cast<std::uint8_t>(section);
  place.sequence = 34;
  place.standing_ms = ms;
  wire::Heartbeat beat;
  beat.ranks = {place};
  return beat;
}

/// Reports the position of its rank, answers DumpStacks with `how` after `pause` (not at all if
/// `how` is empty), and ends at Stop.
awaitable<void> stands(FakeRunner& runner, Section section, std::string how,
                       milliseconds pause = milliseconds(0)) {
  const bool started = co_await runner.start();
  if (!started) co_return;
  const std::uint32_t rank = runner.job.ranks[0].rank;
  co_await runner.sleep(milliseconds(50));
  runner.send(standing(rank, section, 9000));
  const bool asked = co_await runner.until<wire::DumpStacks>();
  if (!asked) co_return;
  if (pause.count() > 0) co_await runner.sleep(pause);
  if (!how.empty()) runner.send(wire::StackDump{rank, how, "main\n  wait\x1b[31m\n"});
  const bool told = co_await runner.until<wire::Stop>();
  if (told) co_await runner.finish(true, SIGTERM);
}

awaitable<void> works(FakeRunner& runner) {
  return stands(runner, Section::forward, "program");
}
awaitable<void> waits(FakeRunner& runner) {
  return stands(runner, Section::reduce, "kernel: no process of it catches SIGQUIT");
}
awaitable<void> waits_silently(FakeRunner& runner) {
  return stands(runner, Section::reduce, "");
}
awaitable<void> waits_and_is_busy(FakeRunner& runner) {
  return stands(runner, Section::reduce, "kernel: no process of it answered SIGQUIT",
                milliseconds(600));
}

/// Two ranks that make no progress, each on a separate host.
struct Standing : Launch {
  using Script = test::FakeHost::Script;
  explicit Standing(Script first, Script second = works) : Launch({{"h1", {0}}, {"h2", {0}}}) {
    job.watchdog.hang_timeout = milliseconds(5000);
    host("h1").script = std::move(first);
    host("h2").script = std::move(second);
  }
};

}  // namespace

TEST_CASE("ranks that hang: their stacks are kept, the right one is blamed, all are stopped") {
  Standing launch(waits);
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == kExitHang);
  CHECK(has(verdict.text,
            "rank 1 on h2 makes no progress: step 12, forward, collective 34, for 9.0 s "
            "(limit 5 s); the others wait for it"));
  const std::filesystem::path stacks = launch.run_folder / "attempts/1/stacks";
  CHECK(has(verdict.text, "stacks of 2 ranks: " + stacks.string()));
  CHECK(has(launch.shown, "hang: rank 1 on h2 makes no progress"));
  const std::string one = test::read_text(stacks / "rank-1.txt");
  CHECK(has(one, "rank 1, program\n"));
  CHECK(has(one, "main\n  wait"));
  CHECK_FALSE(has(one, "\x1b"));
  CHECK(has(test::read_text(stacks / "rank-0.txt"), "rank 0, kernel: no process"));
  const auto hangs = launch.events_named("hang");
  REQUIRE(hangs.size() == 1);
  CHECK(hangs[0]["rank"] == 1);
  CHECK(hangs[0]["host"] == "h2");
  CHECK(hangs[0]["behind"] == nlohmann::json{1});
  CHECK(hangs[0]["standing"] == nlohmann::json{0, 1});
  CHECK(hangs[0]["stacks"] == "attempts/1/stacks");
  const auto causes = launch.events_named("cause");
  REQUIRE(causes.size() == 1);
  CHECK(causes[0]["what"] == "hang");
  CHECK(causes[0]["host"] == "h2");
  CHECK(causes[0]["rank"] == 1);
  for (const char* name : {"h1", "h2"}) {
    CHECK(launch.runner(name).all<wire::DumpStacks>().size() == 1);
    CHECK(launch.runner(name).all<wire::Stop>().size() == 1);
  }
  const auto view = read_run_view(launch.run_folder);
  REQUIRE(view);
  CHECK(has(report_text(*view, {launch.run_folder, "", false}),
            "hang: rank 1 on h2 makes no progress"));
}

TEST_CASE("stacks that do not come are not waited for longer than dump_timeout") {
  Standing launch(waits_silently);
  launch.job.watchdog.dump_timeout = milliseconds(300);
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == kExitHang);
  CHECK(has(verdict.text, "stacks of 1 rank: "));
  CHECK(launch.ran < test::patient(milliseconds(5000)));
}

TEST_CASE("stacks of a host that is busy count though they come after dump_timeout") {
  Standing launch(waits_and_is_busy);
  launch.job.watchdog.dump_timeout = milliseconds(300);
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == kExitHang);
  CHECK(has(verdict.text, "stacks of 2 ranks: "));
}

TEST_CASE(
    "a rank that dies while stacks are awaited is no other cause; dump_timeout = 0 asks for none") {
  struct Dies {
    static awaitable<void> run(FakeRunner& runner) {
      const bool started = co_await runner.start();
      if (!started) co_return;
      co_await runner.sleep(milliseconds(50));
      runner.send(standing(1, Section::forward, 9000));
      const bool asked = co_await runner.until<wire::DumpStacks>();
      if (!asked) co_return;
      runner.exit_rank(1, 3);
      const bool told = co_await runner.until<wire::Stop>();
      if (told) co_await runner.finish(true, SIGTERM);
    }
    static awaitable<void> unasked(FakeRunner& runner) {
      const bool started = co_await runner.start();
      if (!started) co_return;
      co_await runner.sleep(milliseconds(50));
      runner.send(standing(runner.job.ranks[0].rank, Section::forward, 9000));
      const bool told = co_await runner.until<wire::Stop>();
      if (told) co_await runner.finish(true, SIGTERM);
    }
  };
  Standing launch(waits, Dies::run);
  CHECK(launch.run().exit_code == kExitHang);
  CHECK(launch.events_named("cause")[0]["what"] == "hang");

  Launch quick({{"h1", {0}}});
  quick.job.watchdog.hang_timeout = milliseconds(5000);
  quick.job.watchdog.dump_timeout = milliseconds(0);
  quick.host("h1").script = Dies::unasked;
  const Verdict verdict = quick.run();
  CHECK(verdict.exit_code == kExitHang);
  CHECK(quick.runner("h1").all<wire::DumpStacks>().empty());
  CHECK_FALSE(has(verdict.text, "stacks of"));
  CHECK_FALSE(std::filesystem::exists(quick.run_folder / "attempts"));
}

/// Rank 0, which waits for rank 1, ends while stacks are collected. Its end is dated by its runner.
awaitable<void> ends_at_dump(FakeRunner& runner, wire::RankExited how) {
  const bool started = co_await runner.start();
  if (!started) co_return;
  co_await runner.sleep(milliseconds(50));
  wire::Heartbeat beat = standing(0, Section::reduce, 9000);
  beat.time_boot_ms = static_cast<std::uint64_t>(boot_ms());
  runner.send(beat);
  const bool asked = co_await runner.until<wire::DumpStacks>();
  if (!asked) co_return;
  co_await runner.sleep(milliseconds(50));
  how.time_boot_ms = static_cast<std::uint64_t>(boot_ms());
  co_await runner.sleep(milliseconds(100));  // its output is read to the end
  runner.end_rank(how);
  const bool told = co_await runner.until<wire::Stop>();
  if (told) co_await runner.finish(true, SIGTERM);
}

TEST_CASE("a rank that waits for the one that hangs, and ends while stacks are collected") {
  // A time-out of a communicator, and a program that passes SIGQUIT on to its default action.
  for (const bool signaled : {false, true}) {
    CAPTURE(signaled);
    wire::RankExited how;
    how.signaled = signaled;
    how.code = signaled ? SIGQUIT : 3;
    Standing launch([how](FakeRunner& runner) { return ends_at_dump(runner, how); },
                    [](FakeRunner& runner) { return stands(runner, Section::forward, ""); });
    const Verdict verdict = launch.run();
    CHECK(verdict.exit_code == kExitHang);
    CHECK(verdict.ended_after == 1);
    const auto causes = launch.events_named("cause");
    REQUIRE(causes.size() == 1);
    CHECK(causes[0]["what"] == "hang");
    CHECK(causes[0]["rank"] == 1);
  }
}

TEST_CASE("a slow host is named once, and the run goes on") {
  struct Trains {
    static awaitable<void> run(FakeRunner& runner) {
      const bool started = co_await runner.start();
      if (!started) co_return;
      const std::uint32_t rank = runner.job.ranks[0].rank;
      // One real window of ten seconds. watchdog_test.cc simulates several.
      for (std::uint64_t step = 1; step < 130; ++step) {
        wire::Heartbeat beat = standing(rank, Section::forward, 10);
        beat.ranks[0].step = step;
        beat.ranks[0].own_us = rank == 2 ? 150'000 : 100'000;
        runner.send(beat);
        co_await runner.sleep(milliseconds(90));
      }
      co_await runner.finish(false);
    }
  };
  Launch launch({{"h1", {0}}, {"h2", {0}}, {"h3", {0}}});
  launch.limit = std::chrono::seconds(30);
  launch.job.watchdog.straggler_windows = 1;
  for (const char* name : {"h1", "h2", "h3"}) launch.host(name).script = Trains::run;
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 0);
  const auto slow = launch.events_named("straggler");
  REQUIRE(slow.size() == 1);
  CHECK(slow[0]["host"] == "h3");
  CHECK(slow[0]["ratio"] == doctest::Approx(1.5));
  CHECK(has(launch.shown, "h3: its own work takes 150.0 ms a step"));
  const RunView view = read_journal(launch.run_folder);
  REQUIRE(view.stragglers.size() == 1);
  CHECK(view.stragglers[0].starts_with("h3: own work 1.50 times the median of all hosts"));
}

}  // namespace sortie::launcher
