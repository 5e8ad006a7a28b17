// Tests of training byte-level BPE: the rules of the `tokenizers` package, with the same result for
// any number of threads.
#include "trainer/tokenizer/train_bpe.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/mixed_text.h"
#include "tests/support/temp_dir.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/unicode.h"

namespace sortie::trainer {
namespace {

using Json = nlohmann::json;
const std::string kTokenizerData = SORTIE_TEST_DATA "/tokenizer";

/// Returns the text that scripts/make_data_fixtures.py has trained on, as Python decodes its bytes.
std::string training_text() {
  const test::MixedText mixed(kTokenizerData);
  std::string text;
  for (std::uint64_t i = 0; i < 16; ++i) {
    std::string repaired;
    text += repair_utf8(mixed.make(1000 + i, 16000), repaired);
  }
  return text;
}

/// Returns a hash of the tokens in the order of their ids, and then the merges, one per line.
std::string hash_of_rules(const std::string& file) {
  const auto json = nlohmann::ordered_json::parse(test::read_text(file));
  std::string text;
  std::int64_t next = 0;
  for (const auto& [token, id] : json.at("model").at("vocab").items()) {
    CHECK(id == next++);
    text += (text.empty() ? "" : "\n") + token;
  }
  for (const auto& merge : json.at("model").at("merges"))
    text += "\n" + merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  return test::fnv(std::string_view(text));
}

}  // namespace

TEST_CASE("a trained tokenizer has the tokens and merges that the package learns") {
  const Json expected =
      Json::parse(test::read_text(kTokenizerData + "/megatron.json")).at("learnt");
  test::ScopedTempDir dir;
  test::write_text(dir.path() / "text", training_text());
  for (const auto& [name, hash] : expected.items()) {
    CAPTURE(name);
    const auto trained = train_bpe({.files = {dir.path() / "text"},
                                    .pattern = *word_pattern_by_name(name),
                                    .vocab_size = 3000,
                                    .output = dir.path() / "tokenizer.json",
                                    .keep_non_text = true});
    REQUIRE(trained.has_value());
    CHECK(trained->vocab_size == 3000);
    CHECK(hash_of_rules(dir.str("tokenizer.json")) == hash);
    // We can read it, without loss.
    const auto tokenizer = make_tokenizer("hf:" + dir.str("tokenizer.json"));
    REQUIRE(tokenizer.has_value());
    std::vector<std::int32_t> ids;
    const std::string text = "A caf\xc3\xa9, 12345 \xe4\xb8\xad\xe6\x96\x87\n\n  end<|endoftext|>";
    REQUIRE((*tokenizer)->encode(text, ids).has_value());
    CHECK((*tokenizer)->eod_id() == 0);
    CHECK(ids.back() == 0);
    CHECK((*tokenizer)->decode(ids) + "<|endoftext|>" == text);
  }
}

TEST_CASE("training gives the same bytes with any number of threads") {
  test::ScopedTempDir dir;
  std::string text;
  while (text.size() < (5u << 20)) text += training_text() + "\nand so on\n";
  test::write_text(dir.path() / "text", text);
  std::string first;
  for (const int threads : {1, 3}) {
    const auto trained = train_bpe({.files = {dir.path() / "text"},
                                    .vocab_size = 600,
                                    .output = dir.path() / "t.json",
                                    .keep_non_text = true,  // the text has every byte
                                    .threads = threads});
    REQUIRE_MESSAGE(trained, (trained ? "" : trained.error().message));
    CHECK(trained->vocab_size == 600);
    const std::string json = test::read_text(dir.path() / "t.json");
    CHECK((first.empty() || first == json));
    first = json;
  }
}

TEST_CASE("training of BPE reports the bytes that it counts and the tokens that it learns") {
  test::ScopedTempDir dir;
  std::string text;
  while (text.size() < (3u << 20)) text += training_text() + "\nand so on\n";
  test::write_text(dir.path() / "text", text);
  std::vector<WorkProgress> counted, learned;
  const auto trained =
      train_bpe({.files = {dir.path() / "text"},
                 .vocab_size = 600,
                 .output = dir.path() / "t.json",
                 .keep_non_text = true,
                 .threads = 1,
                 .progress = [&](const WorkProgress& work) {
                   (work.stage == "counting words" ? counted : learned).push_back(work);
                 }});
  REQUIRE(trained);
  REQUIRE(counted.size() >= 3);
  for (std::size_t i = 1; i < counted.size(); ++i) CHECK(counted[i - 1].done < counted[i].done);
  CHECK(counted.back().done == text.size());
  CHECK(counted.back().total == text.size());
  REQUIRE(learned.size() >= 3);
  for (std::size_t i = 1; i < learned.size(); ++i) CHECK(learned[i - 1].done < learned[i].done);
  CHECK(learned.back().stage == "learning merges");
  CHECK(learned.back().unit == "tokens");
  CHECK(learned.back().done + 64 > 600);
  CHECK(learned.back().total == 600);
}

TEST_CASE("many small files give what one large file gives, and what is no text is left out") {
  test::ScopedTempDir dir;
  std::string all;
  std::vector<std::filesystem::path> small;
  for (int i = 0; i < 3000; ++i) {
    const std::string text =
        "value_" + std::to_string(i % 700) + " = other_" + std::to_string(i % 31) + ";\n";
    all += text;
    small.push_back(dir.path() / "small" / std::to_string(i));
    test::write_text(small.back(), text);
    if (i % 1000 != 0) continue;
    small.push_back(dir.path() / "small" / (std::to_string(i) + ".png"));
    test::write_text(small.back(), std::string("\x89PNG\0\0value_value_value_", 24));
  }
  test::write_text(dir.path() / "large", all);
  const auto rules = [&](const std::vector<std::filesystem::path>& files, int threads,
                         BpeTrainingResult& result) {
    const auto trained = train_bpe(
        {.files = files, .vocab_size = 500, .output = dir.path() / "t.json", .threads = threads});
    REQUIRE_MESSAGE(trained, (trained ? "" : trained.error().message));
    result = *trained;
    return test::read_text(dir.path() / "t.json");
  };
  BpeTrainingResult one, many;
  const std::string expected = rules({dir.path() / "large"}, 1, one);
  for (const int threads : {1, 3}) {
    CHECK(rules(small, threads, many) == expected);
    CHECK(many.text_bytes == one.text_bytes);
    CHECK(many.left_out.with_nul == 3);
    REQUIRE(many.left_out.examples.size() == 3);
    CHECK(many.left_out.examples[1] == dir.str("small/1000.png"));
  }
  // A large file that is not text.
  std::string noise(1 << 20, '\xff');
  test::write_text(dir.path() / "noise", noise);
  CHECK(rules({dir.path() / "noise", dir.path() / "large"}, 2, many) == expected);
  CHECK(many.left_out.invalid_utf8 == 1);
  // With keep_non_text, all of them count.
  std::vector<std::filesystem::path> files = small;
  files.push_back(dir.path() / "noise");
  const auto kept = train_bpe(
      {.files = files, .vocab_size = 500, .output = dir.path() / "t.json", .keep_non_text = true});
  REQUIRE(kept.has_value());
  CHECK(kept->left_out.count() == 0);
  CHECK(kept->text_bytes == one.text_bytes + 3 * 24 + noise.size());
}

TEST_CASE("a limit within a character does not make the text before it invalid") {
  test::ScopedTempDir dir;
  const std::string text = "caf\u00e9 caf\u00e9 caf\u00e9 caf\u00e9";
  test::write_text(dir.path() / "text", text);
  const auto trained = train_bpe({.files = {dir.path() / "text"},
                                  .vocab_size = 260,
                                  .output = dir.path() / "t.json",
                                  .max_bytes = text.size() - 1});
  REQUIRE_MESSAGE(trained, (trained ? "" : trained.error().message));
  CHECK(trained->left_out.count() == 0);
}

TEST_CASE("training stops where no pair is left, and refuses what can not be") {
  test::ScopedTempDir dir;
  test::write_text(dir.path() / "text", "aaaa aaaa b");
  BpeTraining training{.files = {dir.path() / "text"}, .output = dir.path() / "t.json"};
  const auto few = train_bpe(training);
  REQUIRE(few.has_value());
  CHECK(few->vocab_size == 259);  // merges aa and aaaa
  CHECK(few->words == 3);
  training.output = dir.path() / "refused.json";
  training.vocab_size = 200;
  CHECK(train_bpe(training).error().message.find("256 bytes") != std::string::npos);
  training.vocab_size = 300;
  training.special_tokens = {"<s>", "<s>"};
  CHECK(train_bpe(training).error().message.find("twice") != std::string::npos);
  training.special_tokens = {"a"};
  CHECK(train_bpe(training).error().message.find("\"a\"") != std::string::npos);
  training.special_tokens = {};
  training.files = {dir.path() / "absent"};
  CHECK(train_bpe(training).error().message.find("absent") != std::string::npos);
  test::write_text(dir.path() / "noise", std::string(4000, '\xff'));
  training.files = {dir.path() / "noise"};
  const auto nothing = train_bpe(training);
  REQUIRE_FALSE(nothing.has_value());
  CHECK(nothing.error().code == ErrorCode::data);
  CHECK(nothing.error().message.starts_with("no text in the files; left out: 1 file that is no"));
  CHECK_FALSE(std::filesystem::exists(training.output));
}

}  // namespace sortie::trainer
