// Runs to which hosts return, and slow hosts that leave.
#include "launcher/recovery/grow_hosts.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "launcher/recovery/attempt_events.h"
#include "launcher/recovery/place_hosts.h"
#include "tests/launcher/recovery/attempts.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using test::add_end;
using test::contains;
using test::goes_on;
using test::History;
using test::pool_of;
using test::restarts;
using Names = std::vector<std::string>;

/// A run on h1 to h4 that lost h2 and continues on three hosts.
struct Shrunk {
  Shrunk() {
    recovery.min_hosts = 2;
    AttemptEnd& lost = add_end(history, FailureClass::hardware);
    lost.blamed_host = "h2";
    lost.unusable_hosts = {"h2"};
    pool.places = {"h1", "h2", "h3", "h4"};
  }
  config::RecoveryConfig recovery = restarts(5);
  History history;
  HostPool pool = pool_of({"h1", "h3", "h4"});
};

TEST_CASE("a restart takes a host in again that is fit, in its place of the ranks") {
  Shrunk run;
  add_end(run.history, FailureClass::app);
  CHECK(place_hosts(run.recovery, run.history, run.pool).hosts == Names{"h1", "h3", "h4"});
  run.pool.fit = {"h2"};
  const Placement all = place_hosts(run.recovery, run.history, run.pool);
  CHECK(all.hosts == Names{"h1", "h2", "h3", "h4"});
  CHECK(all.replaced.empty());
  CHECK(contains(all.text, "h2 is fit and takes part again; 4 of 4 hosts continue"));
  run.recovery.grow_at = "never";
  CHECK(place_hosts(run.recovery, run.history, run.pool).hosts.size() == 3);
}

TEST_CASE("who is fit and still does not come back: cordoned, blamed twice, slow, of other slots") {
  Shrunk run;
  run.pool.fit = {"h2"};
  add_end(run.history, FailureClass::app);
  const auto hosts = [&] { return place_hosts(run.recovery, run.history, run.pool).hosts.size(); };
  REQUIRE(hosts() == 4);
  run.pool.cordoned = {"h2"};
  CHECK(hosts() == 3);
  run.pool.cordoned.clear();
  run.pool.chronic = {"h2"};
  CHECK(hosts() == 3);
  run.pool.chronic.clear();
  run.history[0].slow_hosts = {"h2"};
  CHECK(hosts() == 3);
  run.history[0].slow_hosts.clear();
  run.history[1].blamed_host = "h2";
  CHECK(hosts() == 3);
  run.pool.forgiven = {{"h2", 2}};  // a person has uncordoned it
  CHECK(hosts() == 4);
}

TEST_CASE("a host that is fit again takes the place of one that has to go, before fewer go on") {
  Shrunk run;
  run.pool.fit = {"h2"};
  run.recovery.min_hosts = 3;  // two would be too few
  AttemptEnd& lost = add_end(run.history, FailureClass::hardware);
  lost.blamed_host = "h3";
  lost.unusable_hosts = {"h3"};
  const Placement placement = place_hosts(run.recovery, run.history, run.pool);
  CHECK(placement.hosts == Names{"h1", "h2", "h4"});
  CHECK(contains(placement.text, "h3 can not be used: h2 takes its place"));
  run.pool.fit.clear();
  CHECK(place_hosts(run.recovery, run.history, run.pool).hosts.empty());
}

TEST_CASE("spares fill empty places; only as many hosts join as the batch allows") {
  Shrunk run;
  run.pool = pool_of({"h1", "s1"}, {"s2", "s3"});
  run.pool.places = {"h1", "h2", "h3", "h4"};
  run.pool.slots = {{"h1", 2}, {"h2", 2}, {"h3", 2}, {"h4", 2}, {"s1", 2}, {"s2", 1}, {"s3", 8}};
  run.pool.fit = {"h4"};
  add_end(run.history, FailureClass::app);
  const Placement placement = place_hosts(run.recovery, run.history, run.pool);
  // s1 replaced one of the other hosts earlier. Which one does not matter for the ranks.
  CHECK(placement.hosts == Names{"h1", "s1", "s3", "h4"});
  CHECK(placement.replaced == std::map<std::string, std::string>{{"s3", "h3"}});
  std::vector<Names> asked;
  run.pool.legal = [&](const Names& hosts) {
    asked.push_back(hosts);
    return hosts.size() == 3;
  };
  const Placement three = place_hosts(run.recovery, run.history, run.pool);
  CHECK(three.hosts == Names{"h1", "s1", "h4"});
  CHECK(asked == std::vector<Names>{{"h1", "h2", "h3", "h4"}, {"h1", "h2", "h4"}});
  run.pool.legal = [](const Names&) { return false; };
  CHECK(place_hosts(run.recovery, run.history, run.pool).hosts == Names{"h1", "s1"});
}

TEST_CASE("larger: only where more hosts would take part") {
  Shrunk run;
  CHECK_FALSE(larger(run.recovery, run.history, run.pool));
  run.pool.fit = {"h2"};
  const auto placement = larger(run.recovery, run.history, run.pool);
  REQUIRE(placement);
  CHECK(placement->hosts.size() == 4);
  run.pool.hosts = run.pool.places;
  CHECK_FALSE(larger(run.recovery, run.history, run.pool));
}

TEST_CASE("a planned restart is no failure: no budget, no pause, no row without progress") {
  config::RecoveryConfig recovery = restarts(1);
  recovery.no_progress_limit = 2;
  History history;
  for (int i = 0; i < 5; ++i) add_end(history, FailureClass::planned).exit_code = 75;
  const HostPool pool = pool_of({"h1", "h2"});
  const Decision decision = decide(recovery, history, pool, 0.5);
  CHECK(goes_on(decision));
  CHECK(decision.pause.count() == 0);
  CHECK(contains(decision.reason, "planned restart, not counted"));
  CHECK(without_progress(recovery, history) == 0);
  add_end(history, FailureClass::app);
  const Decision first = decide(recovery, history, pool, 0.5);
  CHECK(goes_on(first));
  CHECK(first.pause == recovery.backoff);
  add_end(history, FailureClass::planned).exit_code = 75;
  add_end(history, FailureClass::app);
  CHECK_FALSE(goes_on(decide(recovery, history, pool, 0.5)));  // the only restart is used up
}

TEST_CASE("a slow host leaves for a spare, once, and no more of them than slow_swaps") {
  config::RecoveryConfig recovery = restarts(5);
  History history;
  HostPool pool = pool_of({"h1", "h2", "h3"}, {"s1"});
  CHECK_FALSE(swap_for_slow(recovery, history, pool, {}, "h2"));
  recovery.slow_swaps = 2;
  CHECK(swap_for_slow(recovery, history, pool, {}, "h2") == "s1");
  CHECK_FALSE(swap_for_slow(recovery, history, pool, {"h1"}, "h2"));  // s1 is taken for h1
  pool.spares = {"s1", "s2"};
  CHECK(swap_for_slow(recovery, history, pool, {"h1"}, "h2") == "s2");
  CHECK_FALSE(swap_for_slow(recovery, history, pool, {"h2"}, "h2"));
  CHECK_FALSE(swap_for_slow(recovery, history, pool, {"h1", "h3"}, "h2"));
  pool.spares.clear();
  CHECK_FALSE(swap_for_slow(recovery, history, pool, {}, "h2"));

  add_end(history, FailureClass::planned).slow_hosts = {"h2"};
  CHECK(place_hosts(recovery, history, pool).hosts == Names{"h1", "h2", "h3"});
  pool.spares = {"s1"};
  const Placement swapped = place_hosts(recovery, history, pool);
  CHECK(swapped.hosts == Names{"h1", "s1", "h3"});
  CHECK(swapped.cordon.empty());
  CHECK(contains(swapped.text, "h2 is slow: spare s1 takes its place"));
  // h2 does not return. The second swap is the last one.
  pool = pool_of({"h1", "s1", "h3"}, {"h2", "s2"});
  add_end(history, FailureClass::app);
  CHECK(swap_for_slow(recovery, history, pool, {}, "s1") == "s2");
  add_end(history, FailureClass::planned).slow_hosts = {"s1"};
  CHECK_FALSE(swap_for_slow(recovery, history, pool, {}, "h3"));
}

TEST_CASE("a host that several runs blame leaves at the first blame of this one, where it can") {
  config::RecoveryConfig recovery;
  History history;
  add_end(history, FailureClass::software).blamed_host = "h1";
  HostPool pool = pool_of({"h1", "h2"}, {"s1"});
  pool.chronic = {"h1"};
  const Placement placement = place_hosts(recovery, history, pool);
  CHECK(placement.hosts == Names{"s1", "h2"});
  CHECK(placement.cordon == Names{"h1"});
  CHECK(contains(placement.text, "h1 was blamed in several runs: spare s1 takes its place"));
  pool.spares.clear();
  const Placement stays = place_hosts(recovery, history, pool);
  CHECK(stays.hosts == Names{"h1", "h2"});
  CHECK(stays.cordon.empty());
}

TEST_CASE("slow hosts of an attempt are in its event") {
  AttemptEnd end;
  end.exit_code = 75;
  end.failure = FailureClass::planned;
  end.slow_hosts = {"h2", "h7"};
  const AttemptEnd read = read_attempt_end(event_fields(end));
  CHECK(read.slow_hosts == end.slow_hosts);
  CHECK(read.failure == FailureClass::planned);
}

}  // namespace
}  // namespace sortie::launcher
