// The coordinator, one question at a time, and its log.
#include "launcher/sites/coordinator.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/base/exit_code.h"
#include "tests/launcher/sites/coordinator_table.h"

namespace sortie::launcher {
namespace {

using namespace sortie::training;
using namespace test;
using Table = CoordinatorTable;

TEST_CASE(
    "sites: the first round waits for all sites, its work is disjoint and its weights are tokens") {
  {
    Table table;
    OuterJoin join;
    join.site = "a";
    join.elements = 5;
    table.ask("a", join);
    CHECK(table.waits("a"));
  }
  Table table;
  table.join_all();
  for (const char* site : {"a", "b", "c"}) CHECK(table.told<OuterJoined>(site).donors.empty());
  std::int64_t first = 0;
  for (const char* site : {"a", "b", "c"}) {
    table.next(site, 1);
    const auto work = table.told<OuterWork>(site);
    CHECK(work.first_sample == first);
    CHECK(work.steps == 10);
    CHECK(work.batch == 10);
    first += 100;
  }
  table.ready("a", 1, 100);
  table.ready("b", 1, 300);
  CHECK(table.waits("a"));
  table.ready("c", 1, 50, /*abstains=*/true);
  const auto order = table.told<OuterExchange>("b");
  REQUIRE(order.members.size() == 3);
  CHECK(order.members[0].weight == doctest::Approx(0.25));
  CHECK(order.members[1].weight == doctest::Approx(0.75));
  CHECK(order.members[2].weight == 0.0);
  CHECK(table.told<OuterExchange>("c").key == order.key);
  // A repeated question gets the same answer.
  const std::size_t before = table.said["b"].size();
  table.take(table.coordinator->ask(table.now, "b", 0,
                                    {table.numbers["b"], OuterReady{1, 0, 300, false, ""}}));
  REQUIRE(table.said["b"].size() == before + 1);
  CHECK(table.told<OuterExchange>("b").epoch == order.epoch);
}

TEST_CASE("sites: one with other weights at the start gets those of most") {
  Table table;
  for (const char* site : {"a", "b", "c"}) {
    OuterJoin join;
    join.site = site;
    join.hash = std::string_view(site) == "a" ? 1 : 2;
    join.elements = 5;
    join.fresh = true;
    table.ask(site, join);
  }
  CHECK(table.told<OuterJoined>("b").donors.empty());
  CHECK(table.told<OuterJoined>("c").donors.empty());
  CHECK(table.told<OuterJoined>("a").donors == std::vector<std::string>{"b", "c"});
}

TEST_CASE("sites: a model of another size does not join") {
  Table table;
  table.join_all();
  table.take(table.coordinator->site_down(table.now, "c", false));
  table.take(table.coordinator->site_up(table.now, "c", 2));
  OuterJoin join;
  join.site = "c";
  join.elements = 6;
  table.ask("c", join);
  CHECK(table.told<OuterRefused>("c").reason.find("6 elements at site c and 5 at site a") !=
        std::string::npos);
}

TEST_CASE("sites: what most have come to is committed, and who has not is named") {
  Table table;
  table.join_all();
  for (const char* site : {"a", "b", "c"}) table.next(site, 1);
  for (const char* site : {"a", "b", "c"}) table.ready(site, 1);
  const std::uint64_t epoch = table.coordinator->epoch();
  table.vote("a", 1, epoch, 5);
  table.vote("b", 1, epoch, 6);
  table.vote("c", 1, epoch, 5);
  CHECK(table.told<OuterDecision>("a").commit);
  CHECK(!table.told<OuterDecision>("b").commit);
  CHECK(table.told<OuterDecision>("c").commit);
  bool named = false;
  for (const auto& note : table.notes)
    named = named || (note.kind == OuterKind::differs && note.site == "b");
  CHECK(named);
}

TEST_CASE("sites: an exchange that fails is repeated at once, three times, then after a pause") {
  Table table;
  table.join_all();
  for (const char* site : {"a", "b", "c"}) table.next(site, 1);
  for (int failure = 1; failure <= 3; ++failure) {
    for (const char* site : {"a", "b", "c"}) table.ready(site, 1);
    CAPTURE(failure);
    REQUIRE(!table.waits("a"));
    const std::uint64_t epoch = table.coordinator->epoch();
    CHECK(epoch == static_cast<std::uint64_t>(failure));
    table.vote("a", 1, epoch, 0, /*done=*/false);
    CHECK(!table.told<OuterDecision>("a").commit);
    // The others are notified without asking.
    CHECK(table.told<OuterAbort>("b").epoch == epoch);
    CHECK(table.said["b"].back().number == 0);
    for (const char* site : {"b", "c"}) {
      table.vote(site, 1, epoch, 8);
      CHECK(!table.told<OuterDecision>(site).commit);
    }
  }
  for (const char* site : {"a", "b", "c"}) table.ready(site, 1);
  CHECK(table.waits("a"));
  table.wait(Ms(5100));
  CHECK(table.told<OuterExchange>("a").epoch == 4);
}

TEST_CASE("sites: where the cause of failed exchanges can not be left out, the pauses remain") {
  OuterCoordinator::Settings settings;
  settings.sites = {"a", "b"};
  settings.outer.min_sites = 2;
  Table table(settings);
  table.join_all();
  for (const char* site : {"a", "b"}) table.next(site, 1);
  for (std::uint64_t epoch = 1; epoch <= 3; ++epoch) {
    for (const char* site : {"a", "b"}) table.ready(site, 1);
    REQUIRE(table.coordinator->epoch() == epoch);
    table.vote("a", 1, epoch, 0, /*done=*/false, /*suspect=*/"b");
    table.vote("b", 1, epoch, 8);
  }
  for (const char* site : {"a", "b"}) table.ready(site, 1);
  CHECK(table.waits("a"));
  table.wait(Ms(5100));
  CHECK(table.told<OuterExchange>("a").members.size() == 2);
  CHECK(table.coordinator->epoch() == 4);
}

TEST_CASE(
    "sites: with too few of them the others wait, then the run ends so that it can be resumed") {
  OuterCoordinator::Settings settings;
  settings.outer.min_sites = 2;
  Table table(settings);
  table.join_all();
  table.round(1);
  for (const char* site : {"a", "b"})
    table.take(table.coordinator->site_down(table.now, site, false));
  table.next("c", 2);
  CHECK(table.waits("c"));
  CHECK(table.notes.back().kind == OuterKind::paused);
  table.wait(Ms(599'000));
  CHECK(!table.end);
  table.wait(Ms(2'000));
  REQUIRE(table.end);
  CHECK(table.end->exit_code == kExitPreempted);

  Table other(settings);
  other.join_all();
  for (const char* site : {"a", "b"})
    other.take(other.coordinator->site_down(other.now, site, true));
  REQUIRE(other.end);  // at once: the sites can not come back
  CHECK(other.end->exit_code == kExitPreempted);

  // If no site is left, the result of the run is that of the sites.
  settings.outer.min_sites = 1;
  Table none(settings);
  none.join_all();
  for (const char* site : {"a", "b", "c"})
    none.take(none.coordinator->site_down(none.now, site, true));
  none.wait(Ms(700'000));
  CHECK_FALSE(none.end);
}

TEST_CASE("sites: who comes after the end of training is told so, and begins nothing") {
  Table table;
  table.join_all();
  table.round(1);
  table.take(table.coordinator->site_down(table.now, "b", false));
  table.take(table.coordinator->site_down(table.now, "c", false));
  const auto join = [](const std::string& site) {
    OuterJoin question;
    question.site = site;
    question.elements = 5;
    return question;
  };
  SUBCASE("the one that has the weights has left") {
    table.ask("a", OuterLeave{"training is complete"});
    for (const bool restored : {false, true}) {
      CAPTURE(restored);
      Table other;
      other.coordinator->restore(table.log).value();
      Table& asked = restored ? other : table;
      for (const char* site : {"b", "c"}) {
        asked.take(asked.coordinator->site_up(asked.now, site, 2));
        asked.ask(site, join(site));
        CHECK(asked.told<OuterJoined>(site).over);
        CHECK(asked.told<OuterJoined>(site).round == 1);
        asked.ask(site, OuterLeave{"training is complete"});
      }
      CHECK(asked.coordinator->round() == 1);
      CHECK_FALSE(asked.end);
    }
  }
  SUBCASE("one that was to copy the weights has left, the one that has them is lost") {
    table.take(table.coordinator->site_up(table.now, "b", 2));
    table.ask("b", join("b"));
    CHECK(table.told<OuterJoined>("b").donors == std::vector<std::string>{"a"});
    table.ask("b", OuterLeave{"training is complete"});
    for (const char* site : {"a", "c"}) {
      table.take(table.coordinator->site_down(table.now, site, false));
      table.take(table.coordinator->site_up(table.now, site, 3));
      table.ask(site, join(site));
    }
    CHECK_FALSE(table.told<OuterJoined>("a").over);
  }
}

TEST_CASE(
    "sites: another supervisor repeats what was committed, and calls off what was not heard") {
  Table table;
  table.join_all();
  for (const char* site : {"a", "b", "c"}) table.next(site, 1);
  for (const char* site : {"a", "b", "c"}) table.ready(site, 1);
  for (const char* site : {"a", "b", "c"}) table.vote(site, 1, 1, 5);
  for (const char* site : {"a", "b", "c"}) table.next(site, 2);
  for (const char* site : {"a", "b", "c"}) table.ready(site, 2);
  const std::int64_t granted = table.told<OuterExchange>("a").round == 2 ? 600 : 0;

  Table next;
  next.coordinator =
      std::make_unique<OuterCoordinator>(next.settings, [] { return std::string(64, 'f'); });
  REQUIRE(next.coordinator->restore(table.log));
  for (const char* site : {"a", "b", "c"}) next.take(next.coordinator->site_up(next.now, site, 1));
  next.numbers = table.numbers;
  next.numbers["a"] -= 3;  // its vote of round 1 has not been answered
  next.vote("a", 1, 1, 5);
  CHECK(next.told<OuterDecision>("a").commit);
  next.numbers["a"] += 2;
  // One site has the order, another has not.
  next.vote("b", 2, 2, 6);
  CHECK(next.waits("b"));
  next.ready("c", 2);
  CHECK(!next.told<OuterDecision>("b").commit);
  next.ready("a", 2);
  next.ready("b", 2);
  CHECK(next.told<OuterExchange>("c").epoch == 3);
  for (const char* site : {"a", "b", "c"}) next.vote(site, 2, 3, 6);
  CHECK(next.told<OuterDecision>("b").commit);
  next.next("b", 3);
  CHECK(next.told<OuterWork>("b").first_sample >= granted);
}

TEST_CASE(
    "sites: a site that is removed is not waited for, and hears nothing until it is stopped") {
  Table table;
  table.join_all();
  for (const char* site : {"a", "b", "c"}) table.next(site, 1);
  SUBCASE("while it works") {}
  SUBCASE("while it waits for an answer") {
    table.ready("c", 1);
  }
  table.ready("a", 1);
  const std::size_t heard = table.said["c"].size();
  table.take(table.coordinator->remove_site(table.now, "c"));
  table.ready("b", 1);
  CHECK(table.told<OuterExchange>("a").members.size() == 2);
  // A refusal would make it join again, in vain, and fail.
  table.ready("c", 1);
  CHECK(table.said["c"].size() == heard);
}

TEST_CASE(
    "sites: once the run is to end the exchange under way still counts, and no other begins") {
  Table table;
  table.join_all();
  for (const char* site : {"a", "b", "c"}) table.next(site, 1);
  for (const char* site : {"a", "b", "c"}) table.ready(site, 1);
  const std::uint64_t epoch = table.coordinator->epoch();
  table.take(table.coordinator->stop(table.now));
  for (const char* site : {"a", "b", "c"}) table.vote(site, 1, epoch, 9);
  for (const char* site : {"a", "b", "c"}) CHECK(table.told<OuterDecision>(site).commit);
  for (const char* site : {"a", "b", "c"}) table.next(site, 2);
  table.ready("a", 2);
  // The others have saved and are gone. Site a has not heard of the stop and does not continue
  // without them.
  for (const char* site : {"b", "c"})
    table.take(table.coordinator->site_down(table.now, site, false));
  table.wait(Ms(600'000));
  CHECK(table.waits("a"));
  CHECK(table.coordinator->round() == 1);
}

TEST_CASE("sites: plain steps take the samples that one process would") {
  Table table;
  table.settings.outer.rounds = false;
  table.coordinator =
      std::make_unique<OuterCoordinator>(table.settings, [] { return std::string(64, '0'); });
  for (const char* site : {"a", "b", "c"})
    table.take(table.coordinator->site_up(table.now, site, 1));
  table.join_all();
  // In any order of asking.
  for (std::int64_t step = 1; step <= 3; ++step) {
    for (const char* site : {"c", "a", "b"}) {
      table.next(site, step);
      const auto work = table.told<OuterWork>(site);
      CHECK(work.steps == 1);
      CHECK(work.first_sample == (step - 1) * 30 + (*site - 'a') * 10);
    }
    for (const char* site : {"a", "b", "c"}) table.ready(site, step);
    for (const char* site : {"a", "b", "c"}) table.vote(site, step, table.coordinator->epoch(), 1);
  }
}

}  // namespace
}  // namespace sortie::launcher
