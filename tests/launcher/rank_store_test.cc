// Values that ranks store for each other in the launcher.
#include "launcher/supervise/rank_store.h"

#include <doctest/doctest.h>
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <vector>

using namespace sortie::launcher;

namespace {

struct Stored {
  RankStore store;
  std::vector<std::string> said;  // "RANK LINE"
  void ask(std::uint32_t rank, const std::string& question) {
    said.clear();
    store.take(rank, nlohmann::json::parse(question), [this](std::uint32_t to, std::string line) {
      said.push_back(fmt::format("{} {}", to, line));
    });
  }
};

}  // namespace

TEST_CASE("rank store: a value is given to who asks, before and after it is there") {
  Stored ranks;
  ranks.ask(2, R"({"type":"store","number":5,"do":"get","key":"world"})");
  CHECK(ranks.said.empty());
  ranks.ask(2, R"({"type":"store","number":6,"do":"get","key":"world"})");  // asked again
  ranks.ask(1, R"({"type":"store","number":1,"do":"get","key":"other"})");
  CHECK(ranks.said.empty());
  ranks.ask(0, R"({"type":"store","number":9,"do":"put","key":"world","value":"10.0.0.1 7000"})");
  CHECK(ranks.said ==
        std::vector<std::string>{R"(0 {"number":9,"type":"stored"})",
                                 R"(2 {"number":6,"type":"stored","value":"10.0.0.1 7000"})"});
  ranks.ask(0, R"({"type":"store","number":9,"do":"put","key":"world","value":"10.0.0.1 7000"})");
  CHECK(ranks.said == std::vector<std::string>{R"(0 {"number":9,"type":"stored"})"});
  ranks.ask(3, R"({"type":"store","number":1,"do":"get","key":"world"})");
  CHECK(ranks.said ==
        std::vector<std::string>{R"(3 {"number":1,"type":"stored","value":"10.0.0.1 7000"})"});
}

TEST_CASE("rank store: what is out of bounds is refused") {
  Stored ranks;
  const auto refused = [&](const std::string& question, const char* why) {
    ranks.ask(0, question);
    REQUIRE(ranks.said.size() == 1);
    INFO(ranks.said[0]);
    CHECK(ranks.said[0].find(why) != std::string::npos);
  };
  const auto put = [](const std::string& key, const std::string& value) {
    return nlohmann::json{
        {"type", "store"}, {"number", 1}, {"do", "put"}, {"key", key}, {"value", value}}
        .dump();
  };
  refused(R"({"type":"store","do":"take","key":"a"})", "put or get");
  refused(R"({"type":"store","number":-1,"do":"get","key":7})", "key: a text");
  refused(put(std::string(129, 'k'), "v"), "key: a text");
  refused(put("k", ""), "value: a text");
  refused(put("k", std::string(4097, 'v')), "value: a text");
  ranks.ask(0, put("k", "v"));
  refused(put("k", "w"), "k has another value already");
  for (std::size_t i = 1; i < RankStore::kMostKeys; ++i)
    ranks.ask(0, nlohmann::json{{"do", "get"}, {"key", std::to_string(i)}}.dump());
  refused(put("one more", "v"), "the store has its 65536 keys");
  // Two ranks that wait for every key are as many questions as the store keeps.
  const auto get = [](std::size_t key) {
    return nlohmann::json{{"do", "get"}, {"key", std::to_string(key)}}.dump();
  };
  for (std::size_t i = 1; i < RankStore::kMostKeys; ++i) ranks.ask(1, get(i));
  ranks.ask(2, get(1));
  ranks.ask(2, get(2));
  CHECK(ranks.said.empty());
  ranks.ask(2, get(3));
  REQUIRE(ranks.said.size() == 1);
  CHECK(ranks.said[0].find("131072 questions wait") != std::string::npos);
  ranks.ask(2, get(2));  // a question that is asked again takes no more room
  CHECK(ranks.said.empty());
  ranks.ask(0, put("1", "v"));  // three ranks are answered, which makes room
  CHECK(ranks.said.size() == 4);
  ranks.ask(2, get(3));
  CHECK(ranks.said.empty());
}

TEST_CASE("rank store: the values of all keys together are bounded") {
  Stored ranks;
  const std::string value(RankStore::kMostValueBytes, 'v');
  const auto put = [&](std::size_t key) {
    ranks.ask(0,
              nlohmann::json{{"do", "put"}, {"key", std::to_string(key)}, {"value", value}}.dump());
    return ranks.said.at(0);
  };
  const std::size_t most = RankStore::kMostBytes / RankStore::kMostValueBytes;
  for (std::size_t i = 0; i < most; ++i) REQUIRE(put(i).find("error") == std::string::npos);
  CHECK(put(most).find("the store has its 33554432 bytes") != std::string::npos);
  CHECK(put(0).find("error") == std::string::npos);  // the same value again
}
