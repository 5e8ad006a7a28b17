// The coordinator under random schedules: sites and supervisors that die at any moment, messages
// that are lost, duplicated and reordered.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/launcher/sites/site_world.h"

namespace sortie::launcher {
namespace {

using test::SiteWorld;

void runs_well(const SiteWorld::Config& config) {
  SiteWorld world(config);
  const bool done = world.run(3'600'000);
  CAPTURE(config.seed);
  CAPTURE(world.state());
  REQUIRE(world.broken == std::vector<std::string>{});
  REQUIRE(done);
}

TEST_CASE("sites: rounds go on over lost and doubled messages") {
  for (unsigned seed = 1; seed <= 30; ++seed)
    runs_well({.seed = seed, .sites = 4, .parts = 2, .lost = 0.1, .doubled = 0.2});
}

TEST_CASE("sites: rounds are whole or not at all whoever dies, and nobody waits for ever") {
  for (unsigned seed = 1; seed <= 150; ++seed)
    runs_well({.seed = seed,
               .sites = 3,
               .parts = 1 + static_cast<int>(seed % 2),
               .fragments = 1 + static_cast<std::int64_t>(seed % 3),
               .min_sites = 1 + static_cast<std::int64_t>(seed % 2),
               .site_crashes = 6,
               .lost = 0.03,
               .doubled = 0.05});
}

TEST_CASE("sites: another supervisor goes on from the log, without a lost or a doubled round") {
  for (unsigned seed = 1; seed <= 100; ++seed)
    runs_well({.seed = seed,
               .sites = 3,
               .parts = 1 + static_cast<int>(seed % 2),
               .fragments = 1 + static_cast<std::int64_t>(seed % 2),
               .site_crashes = seed % 3 == 0 ? 4 : 0,
               .coordinator_crashes = 8,
               .lost = 0.05,
               .doubled = 0.05});
}

TEST_CASE("sites: plain steps over all sites") {
  for (unsigned seed = 1; seed <= 30; ++seed)
    runs_well({.seed = seed,
               .sites = 2,
               .rounds = 40,
               .site_crashes = 2,
               .coordinator_crashes = 2,
               .rounds_of_one = true});
}

TEST_CASE("sites: one that is half as fast does half the steps and hardly waits (G23)") {
  SiteWorld world({.seed = 3, .sites = 2, .rounds = 20, .step_seconds = {0.1, 0.2}, .every = 50});
  REQUIRE(world.run(3'600'000));
  CHECK(world.broken == std::vector<std::string>{});
  for (const char* site : {"a", "b"}) {
    CAPTURE(site);
    CHECK(static_cast<double>(world.idle_ms[site]) <=
          0.1 * static_cast<double>(world.busy_ms[site]));
  }
}

}  // namespace
}  // namespace sortie::launcher
