// Messages between site leaders and the coordinator: JSON in both directions, and rejected input.
#include "common/training/outer.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sortie::training {
namespace {

using Json = nlohmann::json;

const std::string kOuterKey(64, 'a');

std::vector<OuterQuestion> outer_questions() {
  return {OuterJoin{"berlin", 1, 4, 17, 0xfedcba9876543210, true, 4096, 1'000'000, "10.0.0.1:40000",
                    37, 50, 3200},
          OuterJoin{"b", 0, 1, 0, 0, false, 0, 0, ""},
          OuterNext{18, 0.25},
          OuterReady{18, 3, 1 << 20, false, ""},
          OuterReady{18, 0, 0, true, "not finite"},
          OuterVote{18, 3, 77, true, 0x0123456789abcdef, "", ""},
          OuterVote{18, 3, 77, false, 0, "a link broke", "paris-2"},
          OuterLeave{"told to"}};
}

std::vector<OuterAnswer> outer_answers() {
  const OuterMember first{"berlin", "[fd00::1]:7000", 0.75}, second{"paris-2", "", 0.25};
  return {
      OuterJoined{17, {"berlin", "paris-2"}}, OuterJoined{0, {}},
      OuterWork{18, 50, 16, 123456},          OuterExchange{18, 3, 77, {first, second}, kOuterKey},
      OuterDecision{18, 3, 77, true, ""},     OuterDecision{18, 3, 77, false, "paris-2 is gone"},
      OuterRefused{"another model"},          OuterJoined{17, {}, true}};
}

Json outer_round_trip(const Json& sent) {
  return Json::parse(sent.dump());
}

TEST_CASE("questions of leaders come back as they were") {
  for (const OuterQuestion& question : outer_questions()) {
    const Json sent = to_json(question, 7);
    CAPTURE(sent.dump());
    CHECK(sent["type"] == "outer");
    const auto back = parse_outer_question(outer_round_trip(sent));
    REQUIRE(back);
    CHECK(back->number == 7);
    CHECK(back->question.index() == question.index());
    CHECK(to_json(back->question, 7) == sent);
  }
  const auto join = parse_outer_question(to_json(outer_questions()[0], 1));
  REQUIRE(join);
  const auto& told = std::get<OuterJoin>(join->question);
  CHECK(told.site == "berlin");
  CHECK(told.part == 1);
  CHECK(told.parts == 4);
  CHECK(told.hash == 0xfedcba9876543210);
  CHECK(told.fresh);
  CHECK(told.address == "10.0.0.1:40000");
  CHECK(told.steps_in_vain == 37);
  CHECK(told.work_steps == 50);
  CHECK(told.first_sample == 3200);
}

TEST_CASE("answers of the coordinator come back as they were") {
  for (const OuterAnswer& answer : outer_answers()) {
    const Json sent = to_json(answer, 9);
    CAPTURE(sent.dump());
    const auto back = parse_outer_answer(outer_round_trip(sent));
    REQUIRE(back);
    CHECK(back->number == 9);
    CHECK(back->answer.index() == answer.index());
    CHECK(to_json(back->answer, 9) == sent);
  }
  const auto abort = parse_outer_answer(to_json(OuterAbort{77, "paris is gone"}, 0));
  REQUIRE(abort);
  CHECK(std::get<OuterAbort>(abort->answer).epoch == 77);
  const auto left_out = parse_outer_answer(to_json(OuterRefused{"join again"}, 0));
  REQUIRE(left_out);
  CHECK(left_out->number == 0);
  const auto exchange = parse_outer_answer(to_json(outer_answers()[3], 1));
  REQUIRE(exchange);
  const auto& order = std::get<OuterExchange>(exchange->answer);
  REQUIRE(order.members.size() == 2);
  CHECK(order.members[0].address == "[fd00::1]:7000");
  CHECK(order.members[1].weight == 0.25);
  CHECK(order.key == kOuterKey);
}

TEST_CASE("a reason is cut to whole characters and carries no bytes that JSON has not") {
  std::string reason = "\xff\x1b[2J";
  for (int i = 0; i < 1000; ++i) reason += "\xc3\xa4";
  const Json sent = to_json(OuterLeave{reason}, 1);
  const auto back = parse_outer_question(outer_round_trip(sent));
  REQUIRE(back);
  const std::string& kept = std::get<OuterLeave>(back->question).reason;
  CHECK(kept.size() <= 1000);
  CHECK(kept.size() > 990);
  CHECK(kept.find('\x1b') == std::string::npos);
}

struct OuterDefect {
  const char* says;
  std::size_t which;
  std::function<void(Json&)> make;
};

TEST_CASE("a question that is malformed or out of range is refused, and its member named") {
  const std::vector<OuterDefect> defects = {
      {"type", 2, [](Json& q) { q["type"] = "step"; }},
      {"type", 2, [](Json& q) { q.erase("type"); }},
      {"type", 2, [](Json& q) { q = Json::array({1}); }},
      {"do", 2, [](Json& q) { q["do"] = "work"; }},
      {"do", 2, [](Json& q) { q["do"] = 4; }},
      {"number", 2, [](Json& q) { q["number"] = 0; }},
      {"number", 2, [](Json& q) { q["number"] = -1; }},
      {"number", 2, [](Json& q) { q.erase("number"); }},
      {"number", 2, [](Json& q) { q["number"] = std::numeric_limits<std::uint64_t>::max(); }},
      {"round", 2, [](Json& q) { q["round"] = 0; }},
      {"round", 2, [](Json& q) { q["round"] = 1.5; }},
      {"round", 2, [](Json& q) { q["round"] = "1"; }},
      {"step_seconds", 2, [](Json& q) { q["step_seconds"] = -0.5; }},
      {"step_seconds", 2, [](Json& q) { q["step_seconds"] = std::nan(""); }},
      {"step_seconds", 2, [](Json& q) { q["step_seconds"] = 1e300; }},
      {"site", 0, [](Json& q) { q["site"] = "a/b"; }},
      {"site", 0, [](Json& q) { q["site"] = ".."; }},
      {"site", 0, [](Json& q) { q["site"] = ""; }},
      {"site", 0, [](Json& q) { q["site"] = std::string(64, 'a'); }},
      {"site", 0, [](Json& q) { q.erase("site"); }},
      {"parts", 0, [](Json& q) { q["parts"] = 0; }},
      {"part:", 0, [](Json& q) { q["part"] = 4; }},
      {"hash", 0, [](Json& q) { q["hash"] = "xyz"; }},
      {"hash", 0, [](Json& q) { q["hash"] = "00000000000000001"; }},
      {"hash", 0, [](Json& q) { q["hash"] = 7; }},
      {"fresh", 0, [](Json& q) { q["fresh"] = 1; }},
      {"position", 0, [](Json& q) { q["position"] = -1; }},
      {"elements", 0, [](Json& q) { q["elements"] = 1e19; }},
      {"steps_in_vain", 0, [](Json& q) { q["steps_in_vain"] = -1; }},
      {"work_steps", 0, [](Json& q) { q["work_steps"] = -1; }},
      {"address", 0, [](Json& q) { q["address"] = "host:80"; }},
      {"address", 0, [](Json& q) { q["address"] = "10.0.0.1:0"; }},
      {"address", 0, [](Json& q) { q["address"] = "10.0.0.1:70000"; }},
      {"address", 0, [](Json& q) { q["address"] = "10.0.0.1"; }},
      {"address", 0, [](Json& q) { q["address"] = "[::1:5"; }},
      {"address", 0, [](Json& q) { q["address"] = "10.0.0.1:80 "; }},
      {"epoch", 5, [](Json& q) { q["epoch"] = 0; }},
      {"suspect", 6, [](Json& q) { q["suspect"] = "a b"; }},
      {"reason", 6, [](Json& q) { q["reason"] = std::string(1001, 'a'); }},
  };
  for (const OuterDefect& defect : defects) {
    Json question = to_json(outer_questions()[defect.which], 3);
    REQUIRE(parse_outer_question(question));
    defect.make(question);
    CAPTURE(question.dump());
    const auto parsed = parse_outer_question(question);
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error().code == ErrorCode::protocol);
    CHECK(parsed.error().message.find(std::string("a leader's question: ") + defect.says) == 0);
  }
}

TEST_CASE("an answer that is malformed or out of range is refused, and its member named") {
  const std::vector<OuterDefect> defects = {
      {"number", 2, [](Json& a) { a["number"] = 0; }},
      {"number", 2,
       [](Json& a) {
         a = to_json(OuterAbort{4, ""}, 3);
       }},
      {"do", 2, [](Json& a) { a["do"] = "join"; }},
      {"donors", 0,
       [](Json& a) {
         a["donors"] = {"berlin", "berlin"};
       }},
      {"donors", 0,
       [](Json& a) {
         a["donors"] = {"berlin", 4};
       }},
      {"donors", 0, [](Json& a) { a["donors"] = "berlin"; }},
      {"donors", 0, [](Json& a) { a["donors"] = Json(257, "x"); }},
      {"steps", 2, [](Json& a) { a["steps"] = -1; }},
      {"first_sample", 2, [](Json& a) { a["first_sample"] = nullptr; }},
      {"key", 3, [](Json& a) { a["key"] = std::string(63, 'a'); }},
      {"key", 3, [](Json& a) { a["key"] = std::string(64, 'G'); }},
      {"key", 3, [](Json& a) { a.erase("key"); }},
      {"members", 3, [](Json& a) { a["members"] = Json::array(); }},
      {"members", 3, [](Json& a) { a["members"][1] = 5; }},
      {"members", 3, [](Json& a) { a["members"][1]["site"] = "berlin"; }},
      {"members", 3, [](Json& a) { a["members"][1]["weight"] = 0.5; }},
      {"weight", 3, [](Json& a) { a["members"][0]["weight"] = 1.5; }},
      {"address", 3, [](Json& a) { a["members"][0]["address"] = "x"; }},
      {"commit", 4, [](Json& a) { a.erase("commit"); }},
  };
  for (const OuterDefect& defect : defects) {
    Json answer = to_json(outer_answers()[defect.which], 3);
    REQUIRE(parse_outer_answer(answer));
    defect.make(answer);
    CAPTURE(answer.dump());
    const auto parsed = parse_outer_answer(answer);
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error().code == ErrorCode::protocol);
    CHECK(parsed.error().message.find(std::string("the coordinator's answer: ") + defect.says) ==
          0);
  }
}

}  // namespace
}  // namespace sortie::training
