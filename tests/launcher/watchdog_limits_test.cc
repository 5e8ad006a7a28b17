// How long a rank may stand still: limits that the watchdog learns, starts, and times that are no
// evidence.
#include <doctest/doctest.h>

#include "tests/launcher/watchdog_simulation.h"

namespace sortie::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using test::five_seconds;
using test::Simulation;
using test::train;
using training::Section;

}  // namespace

TEST_CASE("the percentile of times is never below 99 of 100 of them, and at most a tenth above") {
  TimeHistogram times;
  CHECK(times.p99().count() == 0);
  for (int i = 1; i <= 1000; ++i) times.add(milliseconds(i));
  CHECK(times.p99() >= milliseconds(990));
  CHECK(times.p99() <= milliseconds(1100));
  TimeHistogram rare;  // ignores one in a thousand, but not one in fifty
  for (int i = 0; i < 999; ++i) rare.add(milliseconds(100));
  rare.add(seconds(100));
  CHECK(rare.p99() <= milliseconds(111));
  for (int i = 0; i < 20; ++i) rare.add(seconds(100));
  CHECK(rare.p99() >= seconds(100));
  TimeHistogram odd;
  odd.add(milliseconds(0));
  odd.add(std::chrono::hours(10'000));
  CHECK(odd.p99() >= std::chrono::hours(24));
}

TEST_CASE("limits are learned: five times what is usual, and never less than the minimum") {
  config::WatchdogConfig config;
  config.hang_minimum = seconds(10);
  Simulation job(config, 1, 2);
  CHECK(job.watchdog().limit(Section::forward) == seconds(100));  // nothing learned yet
  for (std::uint64_t step = 1; step <= 40; ++step) {
    job.go_all(step, Section::forward, step);
    REQUIRE_FALSE(job.pass(seconds(6)));
    job.go_all(step, Section::reduce, step);
    REQUIRE_FALSE(job.pass(seconds(1)));
  }
  CHECK(job.watchdog().limit(Section::forward) >= seconds(30));
  CHECK(job.watchdog().limit(Section::forward) <= seconds(34));
  CHECK(job.watchdog().limit(Section::evaluate) == seconds(100));
  CHECK(job.watchdog().limit(Section::start) == seconds(0));
  job.go_all(41, Section::forward, 41);
  CHECK_FALSE(job.pass(seconds(29)));
  CHECK(job.pass(seconds(10)));
}

TEST_CASE("the first steps of an attempt have time, and are not learned from") {
  config::WatchdogConfig config;
  config.hang_minimum = seconds(10);
  config.exempt_steps = 3;
  Simulation job(config, 1, 2);
  for (std::uint64_t step = 101; step <= 103; ++step) {  // a resumed run
    job.go_all(step, Section::forward, step);
    REQUIRE_FALSE(job.pass(seconds(80)));
  }
  for (std::uint64_t step = 104; step <= 130; ++step) {
    job.go_all(step, Section::forward, step);
    REQUIRE_FALSE(job.pass(seconds(2)));
  }
  CHECK(job.watchdog().limit(Section::forward) <= seconds(12));
}

TEST_CASE("a slow start is no hang, unless start_timeout says so") {
  for (const bool limited : {false, true}) {
    CAPTURE(limited);
    config::WatchdogConfig config = five_seconds();
    config.start_timeout = limited ? minutes(2) : minutes(0);
    Simulation job(config, 2, 1);
    job.go_all(0, Section::start);
    CHECK_FALSE(job.pass(seconds(110)));
    job.go(0, 1, Section::reduce, 1);
    const auto hang = job.pass(minutes(30));
    REQUIRE(hang.has_value() == limited);
    if (!limited) continue;
    CHECK(hang->behind == std::vector<std::uint32_t>{1});
    CHECK(hang->limit == minutes(2));
    CHECK(hang_text(*hang, "h02", 2)
              .starts_with("rank 1 on h02 makes no progress: before the first step"));
  }
}

TEST_CASE("a rank that has not begun its first step after an hour hangs") {
  Simulation job(config::WatchdogConfig(), 2, 1);
  job.go_all(0, Section::start);
  CHECK_FALSE(job.pass(minutes(59)));
  CHECK(job.pass(minutes(2)));
}

TEST_CASE("old news are no evidence: a host that is reconnected to, a launcher that was stopped") {
  Simulation job(five_seconds(), 2, 1);
  train(job, 1, 5);
  job.go_all(6, Section::reduce, 6);
  CHECK_FALSE(job.pass(seconds(3)));
  job.silence(1, true);  // its connection is broken: rank 1 may have made progress
  CHECK_FALSE(job.pass(minutes(5)));
  job.go(1, 6, Section::optimizer, 6);
  job.silence(1, false);
  CHECK_FALSE(job.pass(seconds(3)));
  train(job, 7, 9);
  // SIGSTOP of the launcher: the ranks have made progress, but only the heartbeat of host 0 has
  // arrived.
  job.go_all(10, Section::reduce, 10);
  job.beat();
  job.launcher_sleeps(minutes(10));
  CHECK_FALSE(job.watchdog().look(job.now()));
  job.go_all(200, Section::reduce, 200);
  CHECK_FALSE(job.pass(seconds(3)));
  CHECK(job.pass(seconds(10)));
}

TEST_CASE("a launcher that slept does not count its sleep as a rank's start") {
  config::WatchdogConfig config;
  config.start_timeout = minutes(5);
  Simulation job(config, 1, 1);
  job.go_all(0, Section::start);
  CHECK_FALSE(job.pass(minutes(1)));
  job.launcher_sleeps(minutes(60));
  CHECK_FALSE(job.pass(minutes(3)));
  CHECK(job.pass(minutes(2)));
}

}  // namespace sortie::launcher
