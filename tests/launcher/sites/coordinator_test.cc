// The coordinator, question by question, and its log.
#include "launcher/sites/coordinator.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "common/base/exit_code.h"
#include "launcher/sites/outer_log.h"

namespace sortie::launcher {
namespace {

using namespace sortie::training;
using Ms = OuterCoordinator::Time;
using OuterKind = OuterCoordinator::Note::Kind;

/// Three sites of one leader each, rank 0.
struct Table {
  Table(const Table&) = delete;
  explicit Table(OuterCoordinator::Settings with = {}) {
    if (with.sites.empty()) with.sites = {"a", "b", "c"};
    with.outer.every = 10;
    with.outer.rounds = true;
    with.global_batch_size = 30;
    settings = with;
    coordinator =
        std::make_unique<OuterCoordinator>(with, [this] { return fmt::format("{:064x}", ++keys); });
    for (const std::string& site : with.sites) take(coordinator->site_up(now, site, 1));
  }

  void take(OuterCoordinator::Step step) {
    for (std::string& line : step.lines) log += line;
    for (OuterCoordinator::Message& message : step.messages)
      said[message.site].push_back(std::move(message));
    for (OuterCoordinator::Note& note : step.notes) notes.push_back(std::move(note));
    if (step.end) end = step.end;
  }
  void ask(const std::string& site, OuterQuestion question) {
    take(coordinator->ask(now, site, 0, {++numbers[site], std::move(question)}));
  }
  void wait(Ms time) {
    now += time;
    take(coordinator->tick(now));
  }
  /// The last thing that the site was told, which must be of that kind.
  template <class Answer>
  Answer told(const std::string& site) {
    REQUIRE(!said[site].empty());
    REQUIRE(std::holds_alternative<Answer>(said[site].back().answer));
    return std::get<Answer>(said[site].back().answer);
  }
  bool waits(const std::string& site) {
    return said[site].empty() || said[site].back().number != numbers[site];
  }
  void join_all(std::int64_t round = 0) {
    for (const std::string& site : settings.sites) {
      OuterJoin join;
      join.site = site;
      join.round = round;
      join.hash = 7;
      join.fresh = round == 0;
      join.elements = 5;
      ask(site, join);
    }
  }
  void next(const std::string& site, std::int64_t round, double step = 0.1) {
    ask(site, OuterNext{round, step});
  }
  void ready(const std::string& site, std::int64_t round, std::int64_t tokens = 100,
             bool abstains = false) {
    ask(site, OuterReady{round, 0, tokens, abstains, abstains ? "not finite" : ""});
  }
  void vote(const std::string& site, std::int64_t round, std::uint64_t epoch, std::uint64_t hash,
            bool done = true, const std::string& suspect = "") {
    ask(site, OuterVote{round, 0, epoch, done, hash, done ? "" : "the link broke", suspect});
  }
  /// A whole round, `apart` between the first and the last site.
  void round(std::int64_t number, Ms apart = Ms(100)) {
    for (const std::string& site : settings.sites) next(site, number);
    now += Ms(60'000);
    for (const std::string& site : settings.sites) {
      ready(site, number);
      now += apart / 2;
    }
    now += Ms(500);
    for (const std::string& site : settings.sites) vote(site, number, coordinator->epoch(), 9);
    for (const std::string& site : settings.sites) REQUIRE(told<OuterDecision>(site).commit);
  }

  OuterCoordinator::Settings settings;
  std::unique_ptr<OuterCoordinator> coordinator;
  Ms now{1000};
  std::uint64_t keys = 0;
  std::map<std::string, std::uint64_t> numbers;
  std::map<std::string, std::vector<OuterCoordinator::Message>> said;
  std::vector<OuterCoordinator::Note> notes;
  std::optional<OuterCoordinator::End> end;
  std::string log;
};

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
  // A repeat is answered as before.
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

TEST_CASE("sites: one that is late is left out after the learned deadline, and joins again") {
  Table table;
  table.join_all();
  for (std::int64_t round = 1; round <= 4; ++round) table.round(round);
  for (const char* site : {"a", "b", "c"}) table.next(site, 5);
  table.now += Ms(60'000);
  table.ready("a", 5);
  table.ready("b", 5);
  CHECK(table.waits("a"));
  // A round of 60 s; the spread is far below.
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
  CHECK(times.deadline(9) > Ms(50'000));  // it is what others are waited for here
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
  // Of b, in the round before; a and c take 0.1 s.
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
  CHECK(table.said["c"].size() == before);  // it could still be that the exchange fails
  table.vote("b", 5, table.coordinator->epoch(), 3);
  // Of the question that it had asked last: the work of round 5 is taken back.
  CHECK(table.told<OuterRefused>("c").reason == "round 5 was committed without site c; join again");
  CHECK(table.said["c"].back().number == table.numbers["c"]);
  CHECK(table.coordinator->sites()[2].state == "late");
  CHECK(table.said["c"].size() == before + 1);
  table.wait(Ms(4900));
  CHECK(table.said["c"].size() == before + 1);
  table.wait(Ms(200));
  CHECK(table.said["c"].size() == before + 2);  // that may have been lost

  // Another supervisor does not know what it had asked.
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
    // The others hear it unasked.
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
  REQUIRE(other.end);  // at once: they can not come back
  CHECK(other.end->exit_code == kExitPreempted);

  // Where none is left, how they have ended is how the run has.
  settings.outer.min_sites = 1;
  Table none(settings);
  none.join_all();
  for (const char* site : {"a", "b", "c"})
    none.take(none.coordinator->site_down(none.now, site, true));
  none.wait(Ms(700'000));
  CHECK_FALSE(none.end);
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
  next.numbers["a"] -= 3;  // its vote of round 1 is not answered yet
  next.vote("a", 1, 1, 5);
  CHECK(next.told<OuterDecision>("a").commit);
  next.numbers["a"] += 2;
  // One has the order and one has not.
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

TEST_CASE("sites: a site that is removed is not waited for") {
  Table table;
  table.join_all();
  for (const char* site : {"a", "b", "c"}) table.next(site, 1);
  table.ready("a", 1);
  table.ready("b", 1);
  table.take(table.coordinator->remove_site(table.now, "c"));
  CHECK(table.told<OuterExchange>("a").members.size() == 2);
  table.ready("c", 1);
  CHECK(table.told<OuterRefused>("c").reason.find("left the run") != std::string::npos);
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
  // The others have saved and are gone: a, which has not heard of it, does not go on without them.
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
  // In whatever order they ask.
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

TEST_CASE("sites: what a supervisor that was replaced still writes to the log counts for nothing") {
  const std::string first =
      "{\"by\":1,\"do\":\"takes\",\"read\":0}\n{\"by\":1,\"do\":\"left\",\"site\":\"a\"}\n";
  const std::string late = "{\"by\":1,\"do\":\"left\",\"site\":\"b\"}\n";
  const std::string takes =
      fmt::format("{{\"by\":2,\"do\":\"takes\",\"read\":{}}}\n", first.size());
  const std::string second = "{\"by\":2,\"do\":\"left\",\"site\":\"c\"}\n";
  const std::string wanted = "{\"by\":1,\"do\":\"left\",\"site\":\"a\"}\n" + second;
  CHECK(lines_that_count(first + takes + second) == wanted);
  CHECK(lines_that_count(first + late + takes + second) == wanted);
  CHECK(lines_that_count(first + takes + late + second) == wanted);
  CHECK(lines_that_count(first + "{\"by\":1,\"do\":\"le\n" + takes + second) == wanted);
}

}  // namespace
}  // namespace sortie::launcher
