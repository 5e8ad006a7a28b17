// Cordons, the breaker, and the format of their file.
#include "launcher/nodes/node_state.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using test::contains;

Cordon by_run(const std::string& host, double time) {
  return {host, "2 failures", "ana@bastion", "20261122-100000-abcd", time, 2};
}

std::vector<std::string> fleet(std::size_t count) {
  std::vector<std::string> hosts;
  for (std::size_t i = 0; i < count; ++i) hosts.push_back("h" + std::to_string(i));
  return hosts;
}

TEST_CASE("cordoned by name, in order; a second reason replaces the first") {
  NodeState state;
  for (const char* host : {"h2", "h1", "h3"}) cordon(state, {host, "fan", "ana@b", "", 5, 0});
  REQUIRE(state.cordons.size() == 3);
  CHECK(state.cordons[0].host == "h1");
  CHECK(state.cordons[2].host == "h3");
  cordon(state, {"h1", "disk", "bob@b", "", 6, 0});
  CHECK(state.cordons.size() == 3);
  CHECK(state.find("h1")->reason == "disk");
  CHECK(state.find("h10") == nullptr);
  CHECK(state.hosts() == std::set<std::string>{"h1", "h2", "h3"});
  CHECK(uncordon(state, "h1"));
  CHECK_FALSE(uncordon(state, "h1"));
  CHECK(state.find("h1") == nullptr);
}

TEST_CASE(
    "the breaker opens at the third cordon within ten minutes of a small fleet, and stays open") {
  NodeState state;
  CHECK(cordon_by_run(state, by_run("h1", 1000), fleet(8)) == RunCordon::done);
  CHECK(cordon_by_run(state, by_run("h1", 1001), fleet(8)) == RunCordon::there_already);
  CHECK(cordon_by_run(state, by_run("h2", 1002), fleet(8)) == RunCordon::done);
  CHECK_FALSE(state.breaker_open);
  CHECK(cordon_by_run(state, by_run("h3", 1599), fleet(8)) == RunCordon::breaker_open);
  CHECK(state.breaker_open == 1599);
  CHECK(state.find("h3") == nullptr);
  // Time does not close the breaker. People can still cordon hosts.
  CHECK(cordon_by_run(state, by_run("h3", 99999), fleet(8)) == RunCordon::breaker_open);
  cordon(state, {"h4", "fan", "ana@b", "", 5, 0});
  CHECK(state.find("h4") != nullptr);
  state.breaker_open.reset();
  state.recent.clear();
  CHECK(cordon_by_run(state, by_run("h3", 99999), fleet(8)) == RunCordon::done);
}

Blame blame(const std::string& host, double time, const std::string& failure = "software",
            std::uint32_t times = 1) {
  return {host, "", failure, "rank 3 ended by signal 9", times, time};
}

void note(NodeState& state, const std::string& run, std::vector<Blame> blames, double now) {
  for (Blame& one : blames) one.run = run;
  note_blames(state, run, blames, now);
}

TEST_CASE("hosts that several runs blame within a window of days") {
  constexpr double kDay = 86400;
  NodeState state;
  double now = 100 * kDay;
  // A run counts once, however often it blames a host. Its later blames replace its earlier ones.
  note(state, "r1", {blame("h1", now)}, now);
  note(state, "r1", {blame("h1", now + 5, "hang", 3), blame("h2", now + 5)}, now + 5);
  CHECK(state.blames.size() == 2);
  CHECK(chronic_hosts(state, 2, 14 * kDay, now + 5).empty());
  now += 10 * kDay;
  note(state, "r2", {blame("h1", now)}, now);
  CHECK(chronic_hosts(state, 2, 14 * kDay, now) == std::set<std::string>{"h1"});
  CHECK(chronic_hosts(state, 3, 14 * kDay, now).empty());
  CHECK(chronic_hosts(state, 2, 9 * kDay, now).empty());
  CHECK(chronic_hosts(state, 0, 14 * kDay, now).empty());
  const std::string text = blames_text(state.blames_of("h1", 0), 14 * kDay, now + 60);
  CHECK(contains(text, "blamed by 2 runs within"));
  CHECK(contains(text, "hang (3 times), software; last 1m00s ago: rank 3 ended by signal 9"));
  // Another site of the same run blames other hosts. A blame with zero times removes the earlier
  // one.
  NodeState sites = state;
  note(sites, "r2", {blame("h9", now)}, now);
  CHECK(sites.blames_of("h1", 0).size() == 2);
  note(sites, "r2", {blame("h1", now, "hang", 0)}, now);
  CHECK(sites.blames_of("h1", 0).size() == 1);
  // The state survives writing and reading. Files of earlier versions can be read.
  const auto again = parse_node_state(to_json(state).dump());
  REQUIRE(again);
  CHECK(*again == state);
  auto old = to_json(state);
  old.erase("blames");
  REQUIRE(parse_node_state(old.dump()));
  CHECK(parse_node_state(old.dump())->blames.empty());
  // A cordon keeps the blames. uncordon() removes them.
  cordon(state, {"h1", "fan", "ana@b", "", now, 0});
  CHECK(state.blames_of("h1", 0).size() == 2);
  CHECK(uncordon(state, "h1"));
  CHECK(state.blames_of("h1", 0).empty());
  CHECK(state.blames_of("h2", 0).size() == 1);
  // Old blames are removed by the next note_blames().
  note(state, "r3", {blame("h3", now + 91 * kDay)}, now + 91 * kDay);
  REQUIRE(state.blames.size() == 1);
  CHECK(state.blames[0].host == "h3");
}

TEST_CASE("ten minutes later the count begins anew") {
  NodeState state;
  for (int i = 0; i < 20; ++i) {
    CAPTURE(i);
    CHECK(cordon_by_run(state, by_run("h" + std::to_string(i), 1000 + i * 301.0), {}) ==
          RunCordon::done);
  }
  CHECK(state.recent.size() <= 2);
}

TEST_CASE("of a large fleet a tenth may go") {
  NodeState state;
  for (int i = 0; i < 6; ++i)
    CHECK(cordon_by_run(state, by_run("h" + std::to_string(i), 1000 + i), fleet(64)) ==
          RunCordon::done);
  CHECK(most_cordons(state) == 6);
  CHECK(cordon_by_run(state, by_run("h7", 1010), fleet(64)) == RunCordon::breaker_open);
}

TEST_CASE("the file's form, there and back") {
  NodeState state;
  cordon_by_run(state, by_run("h1", 1000.5), fleet(3));
  cordon(state, {"h2", "a \"b\"\\ ä", "ana@b", "", 7, 0});
  state.breaker_open = 12.25;
  const auto again = parse_node_state(to_json(state).dump());
  REQUIRE(again);
  CHECK(*again == state);
  CHECK(*parse_node_state(to_json(NodeState{}).dump()) == NodeState{});
}

TEST_CASE("what is no such file is an error, never an empty list") {
  const std::string good = to_json(NodeState{}).dump();
  for (std::size_t cut = 0; cut < good.size(); ++cut)
    CHECK_FALSE(parse_node_state(good.substr(0, cut)));
  for (
      const char* text :
      {"", "[]", "{}", "null", R"({"schema":"sortie/nodes/1"})",
       R"({"schema":"sortie/nodes/1","cordoned":{},"breaker":3,"seen":[]})",
       R"({"schema":"sortie/nodes/1","cordoned":[{"host":"h"}],"breaker":{"open_since":null,"recent":[]},"seen":[]})",
       R"({"schema":"sortie/nodes/1","cordoned":[3],"breaker":{"open_since":null,"recent":[]},"seen":[]})"}) {
    CAPTURE(text);
    const auto state = parse_node_state(text);
    REQUIRE_FALSE(state);
    CHECK(state.error().code == ErrorCode::data);
  }
  const auto newer = parse_node_state(R"({"schema":"sortie/nodes/2","cordoned":[]})");
  CHECK(contains(newer.error().message, "its schema is 'sortie/nodes/2'"));
}

TEST_CASE("who, when and why, for a terminal") {
  CHECK(cordon_text(by_run("h1", 1000), 1000 + 3725) ==
        "by ana@bastion, run 20261122-100000-abcd, 1h02m ago: 2 failures");
  const std::string text = cordon_text({"h", "x\x1b[2J", "a\nb", "", 10, 0}, 5);
  CHECK(text.find('\x1b') == text.npos);
  CHECK(text.find('\n') == text.npos);
  CHECK(contains(text, " 0s ago"));
}

}  // namespace
}  // namespace sortie::launcher
