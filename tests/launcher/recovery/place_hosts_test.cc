// The hosts of the next attempt.
#include "launcher/recovery/place_hosts.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/launcher/recovery/attempts.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using test::add_end;
using test::contains;
using test::Decision;
using test::goes_on;
using test::History;
using test::pool_of;
using Names = std::vector<std::string>;

History blamed(const Names& hosts, FailureClass failure = FailureClass::hardware) {
  History history;
  for (const std::string& host : hosts) add_end(history, failure).blamed_host = host;
  return history;
}

TEST_CASE("one blame changes nothing; two take the host out and cordon it") {
  const config::RecoveryConfig recovery;
  const HostPool pool = pool_of({"h1", "h2"}, {"s1", "s2"});
  CHECK(place_hosts(recovery, blamed({"h1"}), pool).hosts == Names{"h1", "h2"});
  CHECK(place_hosts(recovery, blamed({"h1", "h2", ""}), pool).hosts == Names{"h1", "h2"});
  const Placement twice = place_hosts(recovery, blamed({"h1", "h2", "h1"}), pool);
  CHECK(twice.hosts == Names{"s1", "h2"});
  CHECK(twice.cordon == Names{"h1"});
  CHECK(twice.replaced.at("s1") == "h1");
  CHECK(contains(twice.text, "h1 was blamed twice: spare s1 takes its place; h1 is cordoned"));
}

TEST_CASE(
    "cordons: not where they are off, stopped by the breaker, there already, or of this machine") {
  config::RecoveryConfig recovery;
  const History history = blamed({"h1", "h1"});
  HostPool pool = pool_of({"h1", "h2"}, {"s1"});
  pool.breaker_open = true;
  Placement placement = place_hosts(recovery, history, pool);
  CHECK(placement.hosts == Names{"s1", "h2"});
  CHECK(placement.cordon.empty());
  pool.breaker_open = false;
  pool.cordoned = {"h1"};
  CHECK(place_hosts(recovery, history, pool).cordon.empty());
  pool.cordoned.clear();
  recovery.cordon = false;
  placement = place_hosts(recovery, history, pool);
  CHECK(placement.hosts == Names{"s1", "h2"});
  CHECK(placement.cordon.empty());
  recovery.cordon = true;
  const Placement here =
      place_hosts(recovery, blamed({"localhost", "localhost"}), pool_of({"localhost"}, {"s1"}));
  CHECK(here.hosts == Names{"s1"});
  CHECK(here.cordon.empty());
}

TEST_CASE("a host that can not be used is replaced at once, by a spare that is sound and fits") {
  const config::RecoveryConfig recovery;
  History history = blamed({"h2"});
  history.back().unusable_hosts = {"h2", "s2"};
  HostPool pool = pool_of({"h1", "h2"}, {"s1", "s2", "s3", "s4"});
  pool.slots = {{"h1", 2}, {"h2", 8}, {"s1", 4}, {"s2", 8}, {"s3", 8}, {"s4", 8}};
  pool.cordoned = {"s3"};
  const Placement placement = place_hosts(recovery, history, pool);
  CHECK(placement.hosts == Names{"h1", "s4"});  // s1 is too small, s2 unusable, s3 cordoned
  CHECK(placement.cordon.empty());
  pool.spares = {"s1", "s2", "s3"};
  CHECK(place_hosts(recovery, history, pool).hosts.empty());
  // A host that a person has cordoned meanwhile must leave too.
  pool.cordoned = {"h1"};
  history.back().unusable_hosts.clear();
  CHECK(place_hosts(recovery, history, pool).hosts == Names{"s1", "h2"});
}

TEST_CASE("a host that reported a fault for a person to mend is cordoned at the first blame") {
  config::RecoveryConfig recovery;
  History history = blamed({"h2"});
  history.back().unusable_hosts = {"h2"};
  const HostPool pool = pool_of({"h1", "h2"}, {"s1"});
  CHECK(place_hosts(recovery, history, pool).cordon.empty());  // lost, for an unknown reason
  history.back().broken = true;
  const Placement placement = place_hosts(recovery, history, pool);
  CHECK(placement.hosts == Names{"h1", "s1"});
  CHECK(placement.cordon == Names{"h2"});
  recovery.cordon = false;
  CHECK(place_hosts(recovery, history, pool).cordon.empty());
}

TEST_CASE("the end of a run cordons a host whose fault a person has to mend, and no other") {
  config::RecoveryConfig recovery = test::restarts(1);
  History history = blamed({"h2", "h2"});
  history.back().unusable_hosts = {"h2"};
  HostPool pool = pool_of({"h1", "h2"});
  Decision end = decide(recovery, history, pool, 0.5);
  CHECK_FALSE(goes_on(end));
  CHECK(end.cordon.empty());  // blamed twice, but the program may be at fault
  history.back().broken = true;
  CHECK(decide(recovery, history, pool, 0.5).cordon == Names{"h2"});
  pool.breaker_open = true;
  CHECK(decide(recovery, history, pool, 0.5).cordon.empty());
  pool.breaker_open = false;
  pool.cordoned = {"h2"};
  CHECK(decide(recovery, history, pool, 0.5).cordon.empty());
  pool.cordoned.clear();
  recovery.cordon = false;
  CHECK(decide(recovery, history, pool, 0.5).cordon.empty());
}

TEST_CASE("one spare for two: first for the host that has to go") {
  const config::RecoveryConfig recovery;
  History history = blamed({"h1", "h1"});
  history.back().unusable_hosts = {"h3"};
  const Placement placement = place_hosts(recovery, history, pool_of({"h1", "h2", "h3"}, {"s1"}));
  CHECK(placement.hosts == Names{"h1", "h2", "s1"});
  CHECK(placement.cordon.empty());  // the run needs h1
  CHECK(contains(placement.text, "h1 was blamed twice, but no spare is left"));
}

TEST_CASE("fewer hosts: as many as min_hosts and the batch allow") {
  config::RecoveryConfig recovery;
  recovery.min_hosts = 2;
  History history = blamed({"h2"});
  history.back().unusable_hosts = {"h2"};
  HostPool pool = pool_of({"h1", "h2", "h3", "h4"});
  CHECK(place_hosts(recovery, history, pool).hosts == Names{"h1", "h3", "h4"});
  pool.legal = [](const Names& hosts) { return hosts.size() == 2 || hosts.size() == 4; };
  const Placement two = place_hosts(recovery, history, pool);
  CHECK(two.hosts == Names{"h1", "h3"});
  CHECK(contains(two.text, "2 of 4 hosts continue"));
  // A spare gets the slots of the host that it replaces, and legal() is called with that host's
  // name.
  HostPool with_spare = pool;
  with_spare.spares = {"s1"};
  with_spare.legal = [&](const Names& hosts) {
    for (const std::string& host : hosts)
      CHECK(std::ranges::find(pool.hosts, host) != pool.hosts.end());
    return hosts.size() == 3;
  };
  history.back().unusable_hosts.insert("h1");
  const Placement three = place_hosts(recovery, history, with_spare);
  CHECK(three.hosts == Names{"s1", "h3", "h4"});
  CHECK(three.replaced.at("s1") == "h1");
  history.back().unusable_hosts.erase("h1");
  recovery.min_hosts = 3;
  const Placement none = place_hosts(recovery, history, pool);
  CHECK(none.hosts.empty());
  CHECK(contains(none.text,
                 "h2 can not be used, no spare is left for it, and recovery.min_hosts = 3"));
  // A host that should leave, but need not, stays if the run would end without it.
  CHECK(place_hosts(recovery, blamed({"h2", "h2"}), pool).hosts == pool.hosts);
  recovery.min_hosts = 2;
  const Placement dropped = place_hosts(recovery, blamed({"h2", "h2"}), pool);
  CHECK(dropped.hosts == Names{"h1", "h3"});
  CHECK(dropped.cordon == Names{"h2"});
}

TEST_CASE("a failure that follows its rank from host to host is the program's") {
  History history;
  for (const char* host : {"h2", "h2", "s1"}) {
    AttemptEnd& end = add_end(history, FailureClass::software);
    end.blamed_host = host;
    end.rank = 3;
  }
  CHECK(blames_of(history, "h2") == 0);
  CHECK(blames_of(history, "s1") == 0);
  history.back().rank = 1;
  CHECK(blames_of(history, "h2") == 2);
  CHECK(blames_of(history, "s1") == 1);
  CHECK(blames_of(history, "") == 0);
  // A lost host is blamed whatever ran on it.
  for (AttemptEnd& end : history) end.failure = FailureClass::hardware;
  history.back().rank = 3;
  CHECK(blames_of(history, "h2") == 2);
}

}  // namespace
}  // namespace sortie::launcher
