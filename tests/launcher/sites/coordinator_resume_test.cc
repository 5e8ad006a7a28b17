// The coordinator of sites that come from checkpoints: whose work is granted again.
#include <doctest/doctest.h>

#include "launcher/sites/coordinator.h"
#include "tests/launcher/sites/coordinator_table.h"

namespace sortie::launcher {
namespace {

using namespace sortie::training;
using namespace test;

/// A question of a site that was stopped in the round after `round`; 0 steps = at its border.
OuterJoin join_with_work(const std::string& site, std::int64_t round, std::int64_t position,
                         std::int64_t steps, std::int64_t first) {
  OuterJoin join;
  join.site = site;
  join.round = round;
  join.hash = 9;
  join.position = position;
  join.elements = 5;
  join.work_steps = steps;
  join.first_sample = first;
  return join;
}

}  // namespace

TEST_CASE("sites: what was granted in the round in which all were stopped is granted again") {
  CoordinatorTable table;
  table.ask("a", join_with_work("a", 2, 500, 10, 600));
  table.ask("b", join_with_work("b", 2, 600, 7, 700));
  table.ask("c", join_with_work("c", 2, 400, 10, 770));
  CoordinatorTable later;  // continues from the log
  later.coordinator->restore(table.log).value();
  for (const char* site : {"a", "b", "c"})
    later.take(later.coordinator->site_up(later.now, site, 1));
  later.numbers = table.numbers;
  for (CoordinatorTable* one : {&table, &later}) {
    CAPTURE(one == &later);
    for (const char* site : {"c", "a", "b"}) one->next(site, 3);
    CHECK(one->told<OuterWork>("a").first_sample == 600);
    CHECK(one->told<OuterWork>("b").first_sample == 700);
    CHECK(one->told<OuterWork>("b").steps == 7);
    CHECK(one->told<OuterWork>("c").first_sample == 770);
    for (const char* site : {"a", "b", "c"}) one->ready(site, 3);
    for (const char* site : {"a", "b", "c"}) one->vote(site, 3, one->coordinator->epoch(), 9);
    one->next("a", 4);
    CHECK(one->told<OuterWork>("a").first_sample == 870);
  }
}

TEST_CASE("sites: work that others have, or that is no longer of the run, is not granted again") {
  CoordinatorTable table;
  std::int64_t of_b = 700;
  SUBCASE("two sites name the same samples") {
    of_b = 650;
  }
  SUBCASE("they are of an earlier round") {
    of_b = 550;
  }
  table.ask("a", join_with_work("a", 2, 600, 10, 600));
  table.ask("b", join_with_work("b", 2, 500, 10, of_b));
  table.ask("c", join_with_work("c", 1, 300, 10, 300));  // takes the weights of the others
  for (const char* site : {"a", "b"}) table.next(site, 3);
  const std::int64_t first = table.told<OuterWork>("a").first_sample;
  CHECK(first == 600);
  CHECK(table.told<OuterWork>("b").first_sample == 700);
  table.next("c", 3);
  CHECK(table.told<OuterWork>("c").first_sample == 800);
}

TEST_CASE("sites: one that was stopped alone in the first round gets its work again") {
  CoordinatorTable table;
  table.join_all();
  for (const char* site : {"a", "b", "c"}) table.next(site, 1);
  CHECK(table.told<OuterWork>("b").first_sample == 100);
  table.take(table.coordinator->site_down(table.now, "b", false));
  table.take(table.coordinator->site_up(table.now, "b", 2));
  OuterJoin join = join_with_work("b", 0, 0, 10, 100);
  join.hash = 7;
  std::int64_t again = 100;
  SUBCASE("the same") {}
  SUBCASE("it names other work") {
    join.first_sample = 200;
    again = 300;
  }
  SUBCASE("it names none") {
    join.work_steps = 0;
    again = 300;
  }
  table.ask("b", join);
  CoordinatorTable later;  // continues from the log
  later.coordinator->restore(table.log).value();
  later.take(later.coordinator->site_up(later.now, "b", 2));
  later.numbers = table.numbers;
  for (CoordinatorTable* one : {&table, &later}) {
    CAPTURE(one == &later);
    one->next("b", 1);
    CHECK(one->told<OuterWork>("b").first_sample == again);
  }
}

TEST_CASE("sites: if all are lost in a round, its samples are granted again, and no others") {
  CoordinatorTable table;
  table.join_all();
  table.round(1);
  for (const char* site : {"a", "b", "c"}) table.next(site, 2);
  CHECK(table.told<OuterWork>("a").first_sample == 300);
  for (const char* site : {"a", "b", "c"})
    table.take(table.coordinator->site_down(table.now, site, false));
  CoordinatorTable later;
  later.coordinator->restore(table.log).value();
  for (CoordinatorTable* one : {&table, &later}) {
    CAPTURE(one == &later);
    for (const char* site : {"a", "b", "c"})
      one->take(one->coordinator->site_up(one->now, site, 2));
    for (const char* site : {"a", "b", "c"}) one->ask(site, join_with_work(site, 1, 100, 0, 0));
    for (const char* site : {"a", "b", "c"}) one->next(site, 2);
    CHECK(one->told<OuterWork>("a").first_sample == 300);
    CHECK(one->told<OuterWork>("c").first_sample == 500);
  }
}

}  // namespace sortie::launcher
