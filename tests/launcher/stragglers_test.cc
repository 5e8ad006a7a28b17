// Which hosts are slow.
#include <doctest/doctest.h>

#include "tests/launcher/watchdog_simulation.h"

namespace sortie::launcher {
namespace {

using std::chrono::seconds;
using test::Simulation;
using training::Section;

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
