// The watchdog with simulated clocks: what counts as a hang, which rank is blamed, and which hosts
// are slow.
#include "launcher/watchdog/watchdog.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

namespace sortie::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using training::Section;
using WatchClock = Watchdog::Clock;

constexpr milliseconds kBeat{2000};

/// Ranks of a job and the runners of their hosts, with a simulated clock. A rank makes progress
/// only through go().
class Simulation {
 public:
  Simulation(const config::WatchdogConfig& config, std::size_t hosts, std::size_t per_host)
      : per_host_(per_host),
        ranks_(hosts * per_host),
        silent_hosts_(hosts),
        watchdog_(config, kBeat, host_of(hosts, per_host)) {
    for (std::uint32_t i = 0; i < ranks_.size(); ++i) watchdog_.rank_started(i, now_);
  }

  struct Place {
    wire::RankProgress told;
    WatchClock::time_point changed{}, heard{};
    milliseconds longest{0};
    Section longest_section = Section::start;
    bool stopped = false;  // SIGSTOP: it sends nothing
    bool tells = true, ended = false;
  };

  void go(std::uint32_t rank, std::uint64_t step, Section section, std::uint64_t sequence = 0) {
    Place& place = ranks_[rank];
    note_longest(place);
    place.told.step = step;
    place.told.section = static_cast<std::uint8_t>(section);
    place.told.sequence = sequence;
    place.changed = place.heard = now_;
  }
  void go_all(std::uint64_t step, Section section, std::uint64_t sequence = 0) {
    for (std::uint32_t i = 0; i < ranks_.size(); ++i) go(i, step, section, sequence);
  }
  Place& rank(std::uint32_t number) { return ranks_[number]; }
  void end(std::uint32_t number) {
    ranks_[number].ended = true;
    watchdog_.rank_ended(number);
  }
  void silence(std::size_t host, bool silent) { silent_hosts_[host] = silent; }

  /// Lets `time` pass. Heartbeats arrive, and the watchdog looks. Returns at the first hang.
  std::optional<Hang> pass(milliseconds time, milliseconds tick = Watchdog::kTick) {
    for (const auto until = now_ + time; now_ < until;) {
      now_ += tick;
      for (Place& place : ranks_)
        if (!place.stopped) place.heard = std::max(place.heard, now_ - seconds(1));
      if (now_ - last_beat_ >= kBeat) beat();
      if (auto hang = watchdog_.look(now_)) return hang;
    }
    return std::nullopt;
  }
  /// The launcher does not run for `time`. The hosts do, and their heartbeats wait for it.
  void launcher_sleeps(milliseconds time) { now_ += time; }
  void beat() {
    last_beat_ = now_;
    for (std::size_t host = 0; host < silent_hosts_.size(); ++host) {
      std::vector<wire::RankProgress> told;
      for (std::uint32_t i = 0; i < ranks_.size(); ++i) {
        Place& place = ranks_[i];
        if (i / per_host_ != host || place.ended || !place.tells) continue;
        wire::RankProgress news = place.told;
        news.rank = i;
        news.standing_ms = count(now_ - place.changed);
        news.silent_ms = count(now_ - place.heard);
        news.longest_ms = static_cast<std::uint32_t>(place.longest.count());
        news.longest_section = static_cast<std::uint8_t>(place.longest_section);
        place.longest = milliseconds(0);
        told.push_back(news);
      }
      if (!silent_hosts_[host]) watchdog_.heard(host, told, now_);
    }
  }

  Watchdog& watchdog() { return watchdog_; }
  WatchClock::time_point now() const { return now_; }

 private:
  static std::vector<std::size_t> host_of(std::size_t hosts, std::size_t per_host) {
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < hosts * per_host; ++i) out.push_back(i / per_host);
    return out;
  }
  static std::uint32_t count(WatchClock::duration time) {
    return static_cast<std::uint32_t>(std::chrono::duration_cast<milliseconds>(time).count());
  }
  void note_longest(Place& place) {
    const auto stood = std::chrono::duration_cast<milliseconds>(now_ - place.changed);
    if (place.changed == WatchClock::time_point{} || stood <= place.longest) return;
    place.longest = stood;
    place.longest_section = static_cast<Section>(place.told.section);
  }

  std::size_t per_host_;
  WatchClock::time_point now_{std::chrono::hours(1)}, last_beat_{};
  std::vector<Place> ranks_;
  std::vector<bool> silent_hosts_;
  Watchdog watchdog_;
};

config::WatchdogConfig five_seconds() {
  config::WatchdogConfig config;
  config.hang_timeout = seconds(5);
  return config;
}

/// Runs steps of about a second, until the limits of the sections are learned.
void train(Simulation& job, std::uint64_t from, std::uint64_t to) {
  for (std::uint64_t step = from; step <= to; ++step)
    for (const Section section :
         {Section::data, Section::forward, Section::backward, Section::reduce}) {
      job.go_all(step, section, step);
      REQUIRE_FALSE(job.pass(milliseconds(250), milliseconds(250)));
    }
}

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

TEST_CASE("a rank that stands still at its own work is found within the limit and a heartbeat") {
  Simulation job(five_seconds(), 2, 2);
  train(job, 1, 5);
  const auto begin = job.now();
  job.go_all(6, Section::reduce, 6);
  job.go(2, 6, Section::forward, 5);
  const auto hang = job.pass(minutes(1));
  REQUIRE(hang);
  CHECK(job.now() - begin >= seconds(5));
  CHECK(job.now() - begin <= seconds(5) + kBeat + Watchdog::kTick);
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

TEST_CASE("who tells nothing is judged by nobody, and others may wait for it") {
  Simulation job(five_seconds(), 2, 1);
  job.rank(1).tells = false;
  job.go(0, 1, Section::reduce, 1);
  CHECK_FALSE(job.pass(minutes(30)));
  Simulation none(five_seconds(), 2, 1);
  none.rank(0).tells = none.rank(1).tells = false;
  CHECK_FALSE(none.pass(minutes(30)));
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

// ---- slow hosts ---------------------------------------------------------------------------------

namespace {

std::vector<Straggler> windows(Stragglers& stragglers, std::vector<std::uint32_t> own, int count) {
  std::vector<Straggler> found;
  for (int i = 0; i < count; ++i)
    for (const Straggler& one : stragglers.window(own)) found.push_back(one);
  return found;
}

}  // namespace

TEST_CASE("a host is slow when it was so for enough windows in a row, and is named once") {
  Stragglers stragglers(4, 1.15, 10);
  const std::vector<std::uint32_t> slow = {100'000, 101'000, 120'000, 99'000};
  const std::vector<std::uint32_t> even = {100'000, 101'000, 100'000, 99'000};
  CHECK(windows(stragglers, slow, 9).empty());
  CHECK(windows(stragglers, even, 1).empty());  // ends the series
  CHECK(windows(stragglers, slow, 9).empty());
  const auto found = windows(stragglers, slow, 100);
  REQUIRE(found.size() == 1);
  CHECK(found[0].host == 2);
  CHECK(found[0].own_ms == doctest::Approx(120));
  CHECK(found[0].ratio() == doctest::Approx(120 / 100.5));
}

TEST_CASE("no host is slow: too few to compare, off, steps that take no time, unknown times") {
  Stragglers two(2, 1.15, 1);
  CHECK(windows(two, {100'000, 900'000}, 5).empty());
  Stragglers off(4, 0, 1);
  CHECK(windows(off, {100'000, 100'000, 100'000, 900'000}, 5).empty());
  Stragglers tiny(4, 1.15, 1);
  CHECK(windows(tiny, {100, 100, 100, 900}, 5).empty());
  Stragglers unknown(4, 1.15, 1);
  CHECK(windows(unknown, {0, 0, 100'000, 900'000}, 5).empty());
  CHECK(windows(unknown, {0, 100'000, 100'000, 900'000}, 5).size() == 1);
}

TEST_CASE("the watchdog's windows last ten seconds and a step, and take a host's slowest rank") {
  config::WatchdogConfig config;
  config.straggler_windows = 3;
  Simulation job(config, 3, 2);
  int named_at = 0;
  for (std::uint64_t step = 1; step <= 60; ++step) {
    job.go_all(step, Section::forward, step);
    for (std::uint32_t i = 0; i < 6; ++i) job.rank(i).told.own_us = i == 3 ? 1'300'000 : 1'000'000;
    REQUIRE_FALSE(job.pass(seconds(2)));
    for (const Straggler& slow : job.watchdog().take_stragglers(job.now())) {
      CHECK(slow.host == 1);
      CHECK(named_at == 0);
      named_at = static_cast<int>(step);
    }
  }
  CHECK(named_at >= 16);  // three windows of five steps, from the first look on
  CHECK(named_at <= 19);
}

}  // namespace sortie::launcher
