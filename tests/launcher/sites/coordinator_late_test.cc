// The coordinator with sites that are late, slow or left out.
#include "launcher/sites/coordinator.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/launcher/sites/coordinator_table.h"

namespace sortie::launcher {
namespace {

using namespace sortie::training;
using namespace test;
using Table = CoordinatorTable;

TEST_CASE("sites: one that is late is left out after the learned deadline, and joins again") {
  Table table;
  table.join_all();
  for (std::int64_t round = 1; round <= 4; ++round) table.round(round);
  for (const char* site : {"a", "b", "c"}) table.next(site, 5);
  table.now += Ms(60'000);
  table.ready("a", 5);
  table.ready("b", 5);
  CHECK(table.waits("a"));
  // A round takes 60 s. The spread between sites is much smaller.
  table.wait(Ms(60'000));
  CHECK(table.waits("a"));
  table.wait(Ms(1'000));
  CHECK(table.told<OuterExchange>("a").members.size() == 2);
  CHECK(table.notes.back().kind == OuterKind::excluded);
  CHECK(table.notes.back().site == "c");
  table.vote("a", 5, table.coordinator->epoch(), 3);
  table.vote("b", 5, table.coordinator->epoch(), 3);
  CHECK(table.told<OuterDecision>("a").commit);
  table.ready("c", 5);
  CHECK(table.told<OuterRefused>("c").reason.find("join again") != std::string::npos);
  OuterJoin join;
  join.site = "c";
  join.round = 4;
  join.elements = 5;
  table.ask("c", join);
  CHECK(table.told<OuterJoined>("c").round == 5);
  CHECK(table.told<OuterJoined>("c").donors.size() == 2);
}

TEST_CASE("sites: the more others wait, the less long is it worth to") {
  CHECK(RoundTimes::worth_waiting(1) == 1.0);
  CHECK(RoundTimes::worth_waiting(2) == 1.0);
  CHECK(RoundTimes::worth_waiting(5) == 0.5);
  CHECK(RoundTimes::worth_waiting(9) == 0.25);
  RoundTimes times;
  CHECK(times.deadline(2) == RoundTimes::kLongest);
  times.note(Ms(100), Ms(500), Ms(80'000));
  CHECK(times.deadline(2) == Ms(80'000));
  CHECK(times.deadline(9) == Ms(20'000));
  times.note(Ms(50'000), Ms(500), Ms(130'000));
  CHECK(times.deadline(9) > Ms(50'000));  // spreads that large are usual here
}

TEST_CASE("sites: a slow round is no slow site; one that stays slow does fewer steps") {
  OuterCoordinator::Settings settings;
  SUBCASE("as fits into the time of the fastest") {}
  SUBCASE("all the same") {
    settings.outer.equal_steps = true;
  }
  Table table(settings);
  table.join_all();
  std::vector<std::int64_t> steps;
  // Seconds per step of b in the previous round; a and c take 0.1 s.
  const std::vector<double> seconds = {0, 0.1, 0.1, 0.3, 0.1, 0.09, 0.2, 0.2, 0.2};
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const auto round = static_cast<std::int64_t>(i) + 1;
    for (const char* site : {"b", "a", "c"})
      table.next(site, round, site == std::string("b") ? seconds[i] : i == 0 ? 0 : 0.1);
    steps.push_back(table.told<OuterWork>("b").steps);
    for (const char* site : {"a", "b", "c"}) table.ready(site, round);
    for (const char* site : {"a", "b", "c"}) table.vote(site, round, table.coordinator->epoch(), 9);
    REQUIRE(table.told<OuterDecision>("a").commit);
  }
  const bool equal = settings.outer.equal_steps;
  CHECK(steps ==
        std::vector<std::int64_t>{10, 10, 10, 10, 10, 10, 10, equal ? 10 : 5, equal ? 10 : 5});
}

TEST_CASE("sites: where all are to do the same steps, slow ones are waited for") {
  OuterCoordinator::Settings settings;
  settings.outer.equal_steps = true;
  Table table(settings);
  table.join_all();
  for (std::int64_t round = 1; round <= 4; ++round) table.round(round);
  for (const char* site : {"a", "b", "c"}) table.next(site, 5);
  table.ready("a", 5);
  table.ready("b", 5);
  table.wait(Ms(590'000));
  CHECK(table.waits("a"));
  table.ready("c", 5);
  CHECK(table.told<OuterExchange>("a").members.size() == 3);
}

TEST_CASE("sites: one that is left out hears of it before it asks for anything, and till it does") {
  Table table;
  table.join_all();
  for (std::int64_t round = 1; round <= 4; ++round) table.round(round);
  for (const char* site : {"a", "b", "c"}) table.next(site, 5);
  CHECK(table.told<OuterWork>("c").round == 5);
  table.now += Ms(60'000);
  table.ready("a", 5);
  table.ready("b", 5);
  table.wait(Ms(61'000));
  const std::size_t before = table.said["c"].size();
  table.vote("a", 5, table.coordinator->epoch(), 3);
  CHECK(table.said["c"].size() == before);  // the exchange could still fail
  table.vote("b", 5, table.coordinator->epoch(), 3);
  // The answer to its last question: the work of round 5 is revoked.
  CHECK(table.told<OuterRefused>("c").reason == "round 5 was committed without site c; join again");
  CHECK(table.said["c"].back().number == table.numbers["c"]);
  CHECK(table.coordinator->sites()[2].state == "late");
  CHECK(table.said["c"].size() == before + 1);
  table.wait(Ms(4900));
  CHECK(table.said["c"].size() == before + 1);
  table.wait(Ms(200));
  CHECK(table.said["c"].size() == before + 2);  // the first message may have been lost

  // Another supervisor does not know the last question.
  Table other;
  other.coordinator->restore(table.log).value();
  for (const char* site : {"a", "b", "c"})
    other.take(other.coordinator->site_up(other.now, site, 1));
  CHECK(other.told<OuterRefused>("c").reason == "round 5 was committed without site c; join again");
  CHECK(other.said["c"].back().number == 0);
  CHECK(other.said["a"].empty());

  OuterJoin join;
  join.site = "c";
  join.round = 4;
  join.elements = 5;
  join.steps_in_vain = 7;
  table.ask("c", join);
  CHECK(table.told<OuterJoined>("c").round == 5);
  CHECK(table.notes.back().kind == OuterKind::joined);
  CHECK(table.notes.back().steps_in_vain == 7);
  CHECK(table.coordinator->sites()[2].steps_in_vain == 7);
  const std::size_t told = table.said["c"].size();
  table.wait(Ms(20'000));
  CHECK(table.said["c"].size() == told);
}

TEST_CASE("sites: what plain steps take says nothing about the first round of many steps") {
  OuterCoordinator::Settings settings;
  settings.outer.start_after = 3;
  Table table(settings);
  table.join_all();
  for (std::int64_t round = 1; round <= 3; ++round) {
    for (const std::string& site : table.settings.sites) table.next(site, round);
    table.now += Ms(300);
    for (const std::string& site : table.settings.sites) table.ready(site, round);
    table.now += Ms(50);
    for (const std::string& site : table.settings.sites)
      table.vote(site, round, table.coordinator->epoch(), 9);
    REQUIRE(table.told<OuterDecision>("a").commit);
  }
  for (const std::string& site : table.settings.sites) table.next(site, 4);
  table.now += Ms(3'000);
  table.ready("a", 4);
  table.wait(Ms(60'000));
  CHECK(table.waits("a"));
  table.ready("b", 4);
  table.ready("c", 4);
  CHECK(table.told<OuterExchange>("a").members.size() == 3);
}

}  // namespace
}  // namespace sortie::launcher
