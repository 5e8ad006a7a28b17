// The hosts of a job when some are cordoned.
#include "launcher/nodes/job_hosts.h"

#include <doctest/doctest.h>

#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using test::contains;
using HostList = std::vector<config::HostSlots>;

NodeState cordoned(const std::vector<std::string>& hosts) {
  NodeState state;
  for (const std::string& host : hosts)
    cordon(state, {host, "fan of " + host, "ana@b", "", 100, 0});
  return state;
}

const HostList kJob = {{"h1", {0, 1}}, {"h2", {0, 1}}, {"h3", {0}}};

TEST_CASE("nothing cordoned, or others: the hosts as they are") {
  for (const NodeState& state : {NodeState{}, cordoned({"h4", "h"})}) {
    const auto sound = without_cordoned(kJob, {{"s1", {0, 1}}}, state, 200);
    REQUIRE(sound);
    CHECK(sound->hosts == kJob);
    CHECK(sound->notes.empty());
  }
}

TEST_CASE("spares take the places of cordoned hosts: sound ones, with enough slots, each once") {
  const HostList spares = {{"s1", {0}}, {"s2", {4, 5, 6}}, {"s3", {0, 1}}};
  const auto sound = without_cordoned(kJob, spares, cordoned({"h2", "h3", "s3"}), 160);
  REQUIRE(sound);
  CHECK(sound->hosts == HostList{{"h1", {0, 1}}, {"s2", {4, 5}}, {"s1", {0}}});
  REQUIRE(sound->notes.size() == 2);
  CHECK(sound->notes[0] ==
        "spare s2 takes the place of h2: h2 is cordoned by ana@b 1m00s ago: fan of h2");
}

TEST_CASE("no spare: an error with who, when, why and what to do, for all of them at once") {
  const auto none = without_cordoned(kJob, {{"s1", {0, 1}}}, cordoned({"h1", "h2"}), 160);
  REQUIRE_FALSE(none);
  CHECK(none.error().code == ErrorCode::config);
  CHECK(none.error().message ==
        "h2 is cordoned by ana@b 1m00s ago: fan of h2\n"
        "sortie: leave it out (--exclude 'h2'), name a spare (recovery.spares), or, once well: "
        "`sortie nodes uncordon 'h2'`");
  const auto all = without_cordoned(kJob, {}, cordoned({"h1", "h2", "h3"}), 160);
  CHECK(contains(all.error().message, "h1 is cordoned"));
  CHECK(contains(all.error().message, "leave them out (--exclude 'h[1-3]')"));
}

}  // namespace
}  // namespace sortie::launcher
