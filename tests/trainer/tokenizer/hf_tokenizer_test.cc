// Compares tokenizers of tokenizer.json files with the `tokenizers` package, on the same text.
#include <doctest/doctest.h>
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/mixed_text.h"
#include "tests/support/temp_dir.h"
#include "trainer/tokenizer/text_stream.h"
#include "trainer/tokenizer/tokenizer.h"

namespace sortie::trainer {
namespace {

using Ids = std::vector<std::int32_t>;
using Json = nlohmann::json;

const std::string kFolder = SORTIE_TEST_DATA "/tokenizer";
constexpr const char* kNames[] = {"gpt2",   "llama3",    "qwen2", "qwen35", "neox",       "prefix",
                                  "llama2", "metaspace", "o200k", "tekken", "deepseek-v3"};

std::unique_ptr<Tokenizer> load(const std::string& name) {
  auto loaded = make_tokenizer("hf:" + kFolder + "/" + name + ".json");
  INFO((loaded ? std::string("ok") : loaded.error().message));
  REQUIRE(loaded.has_value());
  return std::move(*loaded);
}

Ids encode(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  REQUIRE(tokenizer.encode(text, ids).has_value());
  return ids;
}

const Json& expected() {
  static const Json json = Json::parse(test::read_text(kFolder + "/expected.json"));
  return json;
}

const std::vector<std::string>& blocks() {
  static const std::vector<std::string> texts = [] {
    const test::MixedText mixed(kFolder);
    std::vector<std::string> made;
    for (std::size_t i = 0; i < expected().at("text").size(); ++i)
      made.push_back(mixed.make(1000 + i, expected().at("block_chars").get<std::size_t>()));
    return made;
  }();
  return texts;
}

}  // namespace

TEST_CASE("the generated text is the one that the package has seen") {
  for (std::size_t i = 0; i < blocks().size(); ++i)
    CHECK(test::fnv(blocks()[i]) == expected().at("text")[i]);
}

TEST_CASE("a million characters of mixed text have the ids of the package, and decode as there") {
  for (const char* name : kNames) {
    const auto tokenizer = load(name);
    const Json& want = expected().at("tokenizers").at(name);
    CHECK(tokenizer->vocab_size() == want.at("vocab_size"));
    std::size_t tokens = 0;
    for (std::size_t i = 0; i < blocks().size(); ++i) {
      CAPTURE(name);
      CAPTURE(i);
      const Ids ids = encode(*tokenizer, blocks()[i]);
      tokens += ids.size();
      CHECK(test::fnv(ids) == want.at("ids")[i]);
      CHECK(test::fnv(tokenizer->decode(ids)) == want.at("decoded")[i]);
    }
    CHECK(tokens == want.at("tokens"));
  }
}

TEST_CASE("special tokens are put around a text as the package puts them") {
  for (const char* name : kNames) {
    CAPTURE(name);
    const auto tokenizer = load(name);
    const Json& want = expected().at("tokenizers").at(name).at("special");
    Ids ids, alone;
    REQUIRE(encode_with_special_tokens(*tokenizer, blocks()[0], ids));
    CHECK(test::fnv(ids) == want[0]);
    REQUIRE(encode_with_special_tokens(*tokenizer, "", alone));
    CHECK(Json(alone) == want[1]);
  }
  CHECK(load("llama3")->special_tokens().before.size() == 1);
  CHECK(load("o200k")->special_tokens().before.size() == 2);
  CHECK(load("o200k")->special_tokens().after.size() == 2);
  CHECK(load("gpt2")->special_tokens().before.empty());
}

TEST_CASE("every code point is of the class that the package gives it") {
  const auto& firsts = expected().at("every_char_blocks");
  std::vector<std::string> texts;
  for (const auto& first : firsts) texts.push_back(test::every_char(first.get<char32_t>()));
  for (const char* name : kNames) {
    const auto tokenizer = load(name);
    const Json& want = expected().at("tokenizers").at(name).at("every_char");
    for (std::size_t i = 0; i < texts.size(); ++i) {
      CAPTURE(name);
      CAPTURE(firsts[i]);
      CHECK(test::fnv(encode(*tokenizer, texts[i])) == want[i]);
    }
  }
}

TEST_CASE("text that comes id by id is the text of all ids, never with half a character") {
  for (const char* name : kNames) {
    CAPTURE(name);
    const auto tokenizer = load(name);
    // The text is valid, because only decode() can take back fallback bytes that end in an invalid
    // sequence.
    const std::string text = tokenizer->decode(encode(*tokenizer, blocks()[3].substr(0, 30000)));
    const Ids ids = encode(*tokenizer, text);
    TextStream stream(*tokenizer);
    std::string shown;
    for (const std::int32_t id : ids) shown += stream.feed(id);
    shown += stream.finish();
    CHECK(shown == tokenizer->decode(ids));
  }
  const auto tokenizer = load("gpt2");
  const Ids euro = encode(*tokenizer, "\xe2\x82\xac");
  REQUIRE(euro.size() > 1);
  TextStream stream(*tokenizer);
  for (std::size_t i = 0; i + 1 < euro.size(); ++i) CHECK(stream.feed(euro[i]).empty());
  CHECK(stream.feed(euro.back()) == "\xe2\x82\xac");
  CHECK(stream.feed(euro.front()).empty());
  CHECK(stream.finish() == "\xef\xbf\xbd");
}

TEST_CASE("a text cut where the tokenizer allows it keeps its ids") {
  for (const char* name : kNames) {
    CAPTURE(name);
    const auto tokenizer = load(name);
    std::size_t cuts = 0;
    for (const std::string& text : blocks()) {
      const std::size_t cut = tokenizer->find_cut(text, text.size() / 3);
      if (cut == std::string::npos) continue;
      ++cuts;
      Ids parts = encode(*tokenizer, std::string_view(text).substr(0, cut));
      const Ids rest = encode(*tokenizer, std::string_view(text).substr(cut));
      parts.insert(parts.end(), rest.begin(), rest.end());
      CHECK(parts == encode(*tokenizer, text));
    }
    const std::string_view kind = name;
    const bool uncut =
        kind == "neox" || kind == "prefix" || kind == "llama2" || kind == "metaspace";
    CHECK((uncut ? cuts == 0 : cuts > blocks().size() / 2));
  }
}

TEST_CASE("what is not known here is refused by name") {
  const Json good = Json::parse(test::read_text(kFolder + "/qwen2.json"));
  const auto message = [&](auto change) {
    Json changed = good;
    change(changed);
    sortie::test::ScopedTempDir dir;
    test::write_text(dir.path() / "tokenizer.json", changed.dump());
    const auto loaded = make_tokenizer("hf:" + dir.path().string());
    if (loaded) return std::string("loaded");
    CHECK(
        (loaded.error().code == ErrorCode::unsupported || loaded.error().code == ErrorCode::data));
    return loaded.error().message;
  };
  const auto contains = [](const std::string& text, std::string_view part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  CHECK(message([](Json&) {}) == "loaded");
  contains(message([](Json& j) { j["model"]["type"] = "WordPiece"; }), "model WordPiece");
  contains(message([](Json& j) { j["model"]["dropout"] = 0.1; }), "model.dropout");
  contains(message([](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }),
           "end_of_word_suffix");
  contains(message([](Json& j) {
             j["normalizer"] = {{"type", "BertNormalizer"}};
           }),
           "normalizer BertNormalizer");
  contains(message([](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; }), "decoder WordPiece");
  contains(message([](Json& j) { j["truncation"] = {{"max_length", 3}}; }), "truncation");
  auto& splits = "pretokenizers";
  contains(message([&](Json& j) { j["pre_tokenizer"][splits][0]["pattern"]["Regex"] = "\\w+"; }),
           "pattern {\"Regex\":\"\\\\w+\"} is not known");
  contains(message([&](Json& j) { j["pre_tokenizer"][splits][0]["behavior"] = "MergedWithNext"; }),
           "behavior MergedWithNext");
  contains(message([&](Json& j) { j["pre_tokenizer"][splits][1]["use_regex"] = true; }),
           "use_regex");
  contains(message([&](Json& j) {
             j["pre_tokenizer"] = {{"type", "Whitespace"}};
           }),
           "pre_tokenizer Whitespace");
  contains(message([](Json& j) {
             j["pre_tokenizer"] =
                 Json::parse(test::read_text(kFolder + "/deepseek-v3.json"))["pre_tokenizer"];
             std::swap(j["pre_tokenizer"]["pretokenizers"][0],
                       j["pre_tokenizer"]["pretokenizers"][1]);
           }),
           "pattern [\"[\u4e00-");
  contains(
      message([](Json& j) {
        const Json twice = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
        j["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::vector<Json>(40, twice)}};
      }),
      "normalizer Replace: makes texts more than 1000 times longer");
  contains(message([](Json& j) {
             j["decoder"] = {{"type", "Strip"}, {"content", ""}, {"start", 1}, {"stop", 0}};
           }),
           "content of Strip is \"\", not one character");
  const auto processor = [&](const char* text) {
    return message([&](Json& j) { j["post_processor"] = Json::parse(text); });
  };
  contains(processor(R"({"type": "Other"})"), "post_processor Other");
  contains(processor(R"({"type": "TemplateProcessing", "single": [], "special_tokens": {}})"),
           "single has no text");
  contains(processor(R"({"type": "TemplateProcessing", "special_tokens": {}, "single":
             [{"Sequence": {"id": "A"}}, {"Sequence": {"id": "A"}}]})"),
           "a text is known once");
  contains(processor(R"({"type": "TemplateProcessing", "special_tokens": {"x": {"ids": [99999]}},
             "single": [{"SpecialToken": {"id": "x"}}, {"Sequence": {"id": "A"}}]})"),
           "id 99999 is not in the vocabulary");
  contains(processor(R"({"type": "TemplateProcessing", "special_tokens": {},
             "single": [{"SpecialToken": {"id": "x"}}, {"Sequence": {"id": "A"}}]})"),
           "not a tokenizer.json");
  contains(processor(R"({"type": "Sequence", "processors": [{"type": "ByteLevel"},
             {"type": "BertProcessing", "cls": ["a", 1], "sep": ["b", 2]},
             {"type": "RobertaProcessing", "cls": ["a", 1], "sep": ["b", 2]}]})"),
           "post_processor RobertaProcessing: after one that adds tokens");
  contains(processor(R"({"type": "BertProcessing", "cls": ["a"], "sep": ["a", 1]})"),
           "not a tokenizer.json");
  contains(message([](Json& j) { j["model"]["merges"].push_back("a b c"); }), "merge \"a b c\"");
  contains(message([](Json& j) { j["model"]["merges"].push_back({"zzz", "a"}); }), "\"zzz\"");
  contains(message([](Json& j) { j["model"]["vocab"]["a"] = -4; }), "has id -4");
  contains(message([](Json& j) { j["model"]["vocab"]["a"] = j["model"]["vocab"]["b"]; }), " is \"");
  contains(message([](Json& j) { j["added_tokens"][0]["content"] = "a"; }), "added token \"a\"");
  contains(message([](Json& j) { j.erase("model"); }),
           "not a tokenizer.json: no \"model\"; write it again with save_pretrained()");
  contains(message([](Json& j) { j["added_tokens"] = 3; }),
           "not a tokenizer.json: added_tokens: a ");
  contains(message([](Json& j) { j["model"]["vocab"] = 3; }),
           "not a tokenizer.json: model: a number, where another kind of value is expected; ");
  contains(message([](Json& j) { j["model"].erase("vocab"); }),
           "not a tokenizer.json: model: no \"vocab\"; ");
  CHECK(message([](Json& j) { j["model"]["vocab"] = 3; }).find("json.exception") ==
        std::string::npos);
}

TEST_CASE("the end of a document is the first of the known end tokens") {
  const auto llama = load("llama3");
  REQUIRE(llama->eod_id().has_value());
  CHECK(encode(*llama, "<|end_of_text|>") == Ids{*llama->eod_id()});
  CHECK(load("llama2")->eod_id() == 2);
  CHECK(llama->decode(Ids{*llama->eod_id(), -1, 1 << 20}) == "\xef\xbf\xbd\xef\xbf\xbd");
  CHECK(llama->name() == "hf:" + kFolder + "/llama3.json");
  CHECK(llama->model_hash().size() == 64);
}

}  // namespace sortie::trainer
