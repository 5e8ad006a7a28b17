// The coordinator and links between sites that fail again and again.
#include <doctest/doctest.h>

#include "common/base/exit_code.h"
#include "launcher/sites/coordinator.h"
#include "tests/launcher/sites/coordinator_table.h"

namespace sortie::launcher {
namespace {

using namespace sortie::training;
using namespace test;
using Table = CoordinatorTable;

OuterCoordinator::Settings two_sites(std::int64_t min_sites) {
  OuterCoordinator::Settings settings;
  settings.sites = {"a", "b"};
  settings.outer.min_sites = min_sites;
  return settings;
}

/// All sites are ready, and at `site` the exchange fails because of `suspect`. Returns the members
/// of its order.
std::size_t fail_once(Table& table, std::int64_t round, const std::string& site,
                      const std::string& suspect, const std::string& copying = "") {
  table.wait(Ms(61'000));
  for (const std::string& one : table.settings.sites)
    if (!table.end) table.ready(one, round, 100, one == copying);
  if (table.end || table.waits(site)) return 0;
  const std::size_t members = table.told<OuterExchange>(site).members.size();
  if (members == 2) table.vote(site, round, table.coordinator->epoch(), 0, /*done=*/false, suspect);
  return members;
}

TEST_CASE("sites: two that never reach each other end the run, with both names") {
  for (const std::int64_t min_sites : {1, 2}) {
    CAPTURE(min_sites);
    Table table(two_sites(min_sites));
    table.join_all();
    for (const char* site : {"a", "b"}) table.next(site, 1);
    for (int failure = 1; failure <= 12; ++failure) {
      CAPTURE(failure);
      REQUIRE(!table.end);
      REQUIRE(fail_once(table, 1, failure % 3 == 0 ? "b" : "a", failure % 3 == 0 ? "a" : "b") == 2);
    }
    table.wait(Ms(61'000));
    for (const char* site : {"a", "b"}) table.ready(site, 1);
    REQUIRE(table.end);
    CHECK(table.end->exit_code == kExitPreempted);
    CHECK(table.end->text.find("sites a and b: round 1: 12 exchanges have failed") == 0);
    CHECK(table.end->text.find("site b: the link broke") != std::string::npos);
  }
}

TEST_CASE("sites: of two that reach each other no longer, one goes on if it may") {
  Table table(two_sites(1));
  table.join_all();
  table.round(1);
  for (const char* site : {"a", "b"}) table.next(site, 2);
  for (int failure = 1; failure <= 3; ++failure) REQUIRE(fail_once(table, 2, "a", "b") == 2);
  REQUIRE(fail_once(table, 2, "a", "b") == 1);
  table.vote("a", 2, table.coordinator->epoch(), 3);
  CHECK(table.told<OuterDecision>("a").commit);
  // The other one comes back to copy the weights. It is left out again, whoever is named.
  OuterJoin join;
  join.site = "b";
  join.elements = 5;
  table.ask("b", join);
  REQUIRE(table.told<OuterJoined>("b").donors == std::vector<std::string>{"a"});
  for (const char* site : {"a", "b"}) table.next(site, 3);
  for (int failure = 1; failure <= 3; ++failure) REQUIRE(fail_once(table, 3, "b", "a", "b") == 2);
  CHECK(fail_once(table, 3, "a", "b", "b") == 1);
  CHECK(!table.end);
}

}  // namespace
}  // namespace sortie::launcher
