// The watchdog with simulated clocks: what counts as a hang, and which rank is blamed.
#include <doctest/doctest.h>

#include <random>

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

TEST_CASE("a rank that stands still at its own work is found within the limit and a heartbeat") {
  Simulation job(five_seconds(), 2, 2);
  train(job, 1, 5);
  const auto begin = job.now();
  job.go_all(6, Section::reduce, 6);
  job.go(2, 6, Section::forward, 5);
  const auto hang = job.pass(minutes(1));
  REQUIRE(hang);
  CHECK(job.now() - begin >= seconds(5));
  CHECK(job.now() - begin <= seconds(5) + Simulation::kBeat + Watchdog::kTick);
  CHECK(hang->behind == std::vector<std::uint32_t>{2});
  CHECK(hang->ranks == std::vector<std::uint32_t>{0, 1, 2, 3});
  CHECK(hang->host == 1);
  CHECK(hang->where.step == 6);
  CHECK(
      hang_text(*hang, "h02", 4).starts_with("rank 2 on h02 makes no progress: step 6, forward, "));
  CHECK(
      hang_text(*hang, "h02", 4)
          .ends_with("(limit 5 s); the others wait for it; 3 other ranks make no progress either"));
}

TEST_CASE("ranks that wait are no hang while one of them works") {
  Simulation job(five_seconds(), 2, 2);
  train(job, 1, 5);
  job.go_all(6, Section::reduce, 6);
  for (int i = 0; i < 40; ++i) {  // rank 3 is slow, but makes progress
    job.go(3, 6, i % 2 == 0 ? Section::forward : Section::backward, 5);
    CHECK_FALSE(job.pass(seconds(3)));
  }
  const auto hang = job.pass(minutes(1));  // until it stops
  REQUIRE(hang);
  CHECK(hang->behind == std::vector<std::uint32_t>{3});
}

TEST_CASE("whom the others wait for: the silent one, then the fewest collectives, then the step") {
  SUBCASE("a stopped process") {
    Simulation job(five_seconds(), 2, 2);
    train(job, 1, 5);
    job.go_all(6, Section::reduce, 6);
    job.go(0, 6, Section::forward, 5);  // works, as far as is known
    job.rank(1).stopped = true;
    const auto hang = job.pass(minutes(1));
    REQUIRE(hang);
    CHECK(hang->behind == std::vector<std::uint32_t>{1});
    CHECK(hang->why.contains("is silent"));
    CHECK(hang->host == 0);
  }
  SUBCASE("all wait, one for an earlier collective") {
    Simulation job(five_seconds(), 2, 2);
    train(job, 1, 5);
    job.go_all(6, Section::reduce, 60);
    job.go(3, 6, Section::reduce, 59);
    const auto hang = job.pass(minutes(1));
    REQUIRE(hang);
    CHECK(hang->behind == std::vector<std::uint32_t>{3});
    CHECK(hang->why == "it has begun the fewest collectives");
    CHECK(hang->where.sequence == 59);
  }
  SUBCASE("a program without sections and collectives") {
    Simulation job(five_seconds(), 2, 2);
    for (std::uint64_t step = 1; step <= 5; ++step) {
      job.go_all(step, Section::step);
      REQUIRE_FALSE(job.pass(seconds(1)));
    }
    job.go_all(7, Section::step);
    job.go(1, 6, Section::step);
    const auto hang = job.pass(minutes(1));
    REQUIRE(hang);
    CHECK(hang->behind == std::vector<std::uint32_t>{1});
    CHECK(hang->why == "its step is the lowest");
  }
  SUBCASE("nothing tells them apart: no host is blamed") {
    Simulation job(five_seconds(), 2, 2);
    train(job, 1, 5);
    job.go_all(6, Section::reduce, 60);
    const auto hang = job.pass(minutes(1));
    REQUIRE(hang);
    CHECK(hang->behind.size() == 4);
    CHECK_FALSE(hang->host);
    CHECK(hang_text(*hang, "h01", 4).starts_with("all 4 ranks make no progress: step 6, reduce, "));
  }
  SUBCASE("several on one host: that host") {
    Simulation job(five_seconds(), 3, 2);
    train(job, 1, 5);
    job.go_all(6, Section::reduce, 60);
    job.go(2, 6, Section::data, 59);
    job.go(3, 6, Section::data, 59);
    const auto hang = job.pass(minutes(1));
    REQUIRE(hang);
    CHECK(hang->behind == std::vector<std::uint32_t>{2, 3});
    CHECK(hang->host == 1);
  }
}

TEST_CASE("ranks that do not wait for each other: the one that stands still is found alone") {
  Simulation job(five_seconds(), 2, 1);
  for (std::uint64_t step = 1; step < 60; ++step) {
    job.go(0, step, Section::step);
    if (step <= 20) job.go(1, step, Section::step);
    const auto hang = job.pass(milliseconds(500), milliseconds(500));
    if (!hang) continue;
    CHECK(step >= 29);
    CHECK(step <= 35);
    CHECK(hang->ranks == std::vector<std::uint32_t>{1});
    CHECK(hang->host == 1);
    return;
  }
  FAIL("not found");
}

TEST_CASE("who tells nothing is judged by nobody, and others may wait for it") {
  Simulation job(five_seconds(), 2, 1);
  job.rank(1).tells = false;
  job.go(0, 1, Section::reduce, 1);
  CHECK_FALSE(job.pass(minutes(30)));
  Simulation none(five_seconds(), 2, 1);
  none.rank(0).tells = none.rank(1).tells = false;
  CHECK_FALSE(none.pass(minutes(30)));
}

TEST_CASE("ranks that have ended are not waited for, and watchdog.hangs = false finds nothing") {
  Simulation job(five_seconds(), 1, 2);
  train(job, 1, 5);
  job.end(1);
  for (std::uint64_t step = 6; step < 30; ++step) {
    job.go(0, step, Section::forward, step);
    CHECK_FALSE(job.pass(seconds(2)));
  }
  config::WatchdogConfig off = five_seconds();
  off.hangs = false;
  Simulation unwatched(off, 1, 2);
  train(unwatched, 1, 5);
  CHECK_FALSE(unwatched.pass(minutes(60)));
}

TEST_CASE("what a host makes up is passed over") {
  Simulation job(five_seconds(), 2, 1);
  train(job, 1, 5);
  wire::RankProgress foreign;
  foreign.rank = 0;
  foreign.step = 6;
  foreign.section = static_cast<std::uint8_t>(Section::forward);
  foreign.standing_ms = 1'000'000;
  wire::RankProgress unknown = foreign;
  unknown.rank = 99;
  wire::RankProgress odd = foreign;
  odd.rank = 1;
  odd.section = 200;
  const std::vector<wire::RankProgress> told = {foreign, unknown, odd};
  job.watchdog().heard(1, told, job.now());
  CHECK_FALSE(job.watchdog().look(job.now()));
}

TEST_CASE("hours of noisy healthy load raise no alarm") {
  // Lognormal steps, occasional pauses of data, saves and evaluations without ticks, a slow rank.
  config::WatchdogConfig config;
  for (const unsigned seed : {1u, 2u, 3u}) {
    Simulation job(config, 4, 2);
    std::mt19937 random(seed);
    std::lognormal_distribution<double> noise(0.0, 0.5);
    const auto nap = [&](double seconds_long) {
      return milliseconds(static_cast<std::int64_t>(seconds_long * 1000 * noise(random)) + 1);
    };
    const auto begin = job.now();
    std::uint64_t step = 0;
    while (job.now() - begin < std::chrono::hours(4)) {
      ++step;
      job.go_all(step, Section::data, 3 * step);
      REQUIRE_FALSE(job.pass(nap(random() % 50 == 0 ? 8.0 : 0.3)));
      job.go_all(step, Section::forward, 3 * step);
      REQUIRE_FALSE(job.pass(nap(2.0)));
      const std::uint32_t slow = static_cast<std::uint32_t>(random() % 8);
      job.go_all(step, Section::reduce, 3 * step + 1);
      job.go(slow, step, Section::backward, 3 * step);
      REQUIRE_FALSE(job.pass(nap(4.0)));
      job.go(slow, step, Section::reduce, 3 * step + 1);
      REQUIRE_FALSE(job.pass(nap(0.5)));
      if (step % 40 == 0) {
        job.go_all(step, Section::evaluate, 3 * step + 2);
        REQUIRE_FALSE(job.pass(nap(100)));
      }
      if (step % 30 == 0) {
        job.go_all(step, Section::save, 3 * step + 2);
        REQUIRE_FALSE(job.pass(nap(60)));
      }
      CHECK(job.watchdog().take_stragglers(job.now()).empty());
    }
    // A real hang is found after that.
    job.go_all(step + 1, Section::reduce, 3 * step + 3);
    job.rank(5).stopped = true;
    const auto hang = job.pass(minutes(10));
    REQUIRE(hang);
    CHECK(hang->behind == std::vector<std::uint32_t>{5});
  }
}

}  // namespace sortie::launcher
