// Compares our encoders with the sentencepiece library: the same ids for every kind of model, every
// normalisation and any bytes.
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/support/mixed_text.h"
#include "tests/support/temp_dir.h"
#include "trainer/tokenizer/spm_bpe.h"
#include "trainer/tokenizer/spm_json.h"
#include "trainer/tokenizer/spm_trie.h"
#include "trainer/tokenizer/spm_unigram.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/unicode.h"

namespace sortie::trainer {
namespace {

using Ids = std::vector<std::int32_t>;
using Options = std::unordered_map<std::string, std::string>;

Ids encoded_behind(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids = {7};  // ids from before stay, and are no neighbours of the text
  const auto encoded = tokenizer.encode(text, ids);
  REQUIRE_MESSAGE(encoded.has_value(), (encoded ? "" : encoded.error().message));
  return ids;
}

/// Returns code points from all planes, most of them assigned, with spaces of many kinds and
/// malformed bytes between them.
std::string random_unicode(std::uint64_t seed, int chars) {
  constexpr char32_t kFirst[] = {0x20,   0xa0,   0x300,  0x370,   0x400,   0x600,  0x900,  0x1100,
                                 0x1e00, 0x2000, 0x2100, 0x3000,  0x30a0,  0x4e00, 0xac00, 0xf900,
                                 0xfb00, 0xfe50, 0xff00, 0x1d400, 0x1f300, 0x20000};
  std::uint64_t state = seed;
  const auto below = [&](std::uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
  };
  std::string text;
  for (int i = 0; i < chars; ++i) {
    switch (below(8)) {
      case 0:
        text += ' ';
        break;
      case 1:
        append_utf8(text, static_cast<char32_t>(0x61 + below(26)));
        break;
      case 2:
        text += static_cast<char>(below(256));
        break;  // mostly malformed
      default:
        append_utf8(text, kFirst[below(std::size(kFirst))] + static_cast<char32_t>(below(160)));
    }
  }
  return text;
}

/// Texts to train the models on, and texts to encode.
class Texts {
 public:
  Texts() : mixed_(SORTIE_TEST_DATA "/tokenizer") {
    for (std::uint64_t seed = 0; seed < 60; ++seed) training_.push_back(mixed_.make(seed, 200));
    for (int i = 0; i < 4000; ++i)
      training_.push_back(
          fmt::format("  if (value_{} == {}) return  compute(wert_{});", i % 7, i, i % 11));
    for (std::string& line : training_)
      std::erase_if(line, [](char c) { return c == '\n' || c == '\0'; });
  }
  const std::vector<std::string>& training() const { return training_; }
  std::vector<std::string> questions() const {
    std::vector<std::string> all = {"",
                                    " ",
                                    "   ",
                                    "a",
                                    " a ",
                                    "a  b",
                                    "\n",
                                    "\t x\n\n y ",
                                    "\xe2\x96\x81",
                                    "a\xe2\x96\x81 b",
                                    std::string("a\0b", 3),
                                    "<s></s><unk><0x41>",
                                    "\xe3\x80\x80x\xe3\x80\x80 y ",
                                    "[SEP] [SEP][MASKED] a[SEP]b x  [SEP]",
                                    std::string(3000, 'a'),
                                    std::string(3000, ' ')};
    for (std::uint64_t seed = 1000; seed < 1060; ++seed) {
      all.push_back(mixed_.make(seed, 1500));
      all.push_back(random_unicode(seed, 1500));
    }
    // Longer than the windows of normalisation and cutting.
    all.push_back(mixed_.make(1, 150'000));
    all.push_back(random_unicode(2, 100'000));
    return all;
  }

 private:
  test::MixedText mixed_;
  std::vector<std::string> training_;
};

std::string train(const Options& options, const std::vector<std::string>& lines) {
  class Lines final : public sentencepiece::SentenceIterator {
   public:
    explicit Lines(const std::vector<std::string>& lines) : lines_(lines) {}
    bool done() const override { return at_ == lines_.size(); }
    void Next() override { ++at_; }
    const std::string& value() const override { return lines_[at_]; }
    sentencepiece::util::Status status() const override { return {}; }

   private:
    const std::vector<std::string>& lines_;
    std::size_t at_ = 0;
  } iterator(lines);
  std::string model;
  const auto trained = sentencepiece::SentencePieceTrainer::Train(options, &iterator, &model);
  REQUIRE_MESSAGE(trained.ok(), trained.ToString());
  return model;
}

/// Trains a model and compares our encoder with the library on all questions. Returns the number of
/// different ids seen.
std::size_t compare(const Texts& texts, Options options) {
  static const Options kDefaults = {
      {"vocab_size", "2000"}, {"minloglevel", "2"},          {"character_coverage", "0.98"},
      {"num_threads", "1"},   {"hard_vocab_limit", "false"}, {"max_sentence_length", "20000"}};
  for (const auto& [key, value] : kDefaults) options.emplace(key, value);
  const test::ScopedTempDir dir;
  const std::string model = train(options, texts.training());
  test::write_text(dir.path() / "m.model", model);
  const auto parsed = spm::parse_model(model).value();
  const auto normalizer = spm::Normalizer::create(parsed).value();
  // Ensures that the library is not compared with itself.
  if (options["model_type"] == "bpe") REQUIRE(spm::BpeEncoder::create(parsed, normalizer));
  if (options["model_type"] == "unigram") REQUIRE(spm::UnigramEncoder::create(parsed, normalizer));
  const auto ours = load_sentencepiece(dir.path() / "m.model").value();
  const auto theirs =
      load_sentencepiece(dir.path() / "m.model", SentencepieceEncoder::library).value();
  std::map<std::int32_t, int> seen;
  for (const std::string& text : texts.questions()) {
    const Ids expected = encoded_behind(*theirs, text);
    CHECK_MESSAGE(encoded_behind(*ours, text) == expected,
                  fmt::format("a text of {} bytes", text.size()));
    // Again, from the cache.
    CHECK(encoded_behind(*ours, text) == expected);
    for (const std::int32_t id : expected) ++seen[id];
  }
  return seen.size();
}

const Texts& texts() {
  static const Texts all;
  return all;
}

}  // namespace

TEST_CASE("ids are the library's under every normalisation, for BPE and unigram") {
  for (const char* type : {"bpe", "unigram"})
    for (const char* rule : {"identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"}) {
      CAPTURE(type);
      CAPTURE(rule);
      const std::size_t seen =
          compare(texts(), {{"model_type", type}, {"normalization_rule_name", rule}});
      CHECK(seen > 300);
    }
}

TEST_CASE("ids are the library's whatever is done with spaces, bytes and symbols of the user") {
  const std::vector<Options> kinds = {
      {{"add_dummy_prefix", "false"}},
      {{"remove_extra_whitespaces", "false"}},
      {{"add_dummy_prefix", "false"},
       {"remove_extra_whitespaces", "false"},
       {"normalization_rule_name", "identity"},
       {"byte_fallback", "true"}},
      {{"treat_whitespace_as_suffix", "true"}},
      {{"byte_fallback", "true"}},
      {{"split_by_whitespace", "false"}},
      {{"allow_whitespace_only_pieces", "true"}, {"remove_extra_whitespaces", "false"}},
      {{"user_defined_symbols", "[SEP],if (,\xe2\x96\x81return,ab,abc"}},
      {{"control_symbols", "<a>,<b>"}, {"byte_fallback", "true"}},
  };
  for (const char* type : {"bpe", "unigram"})
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      CAPTURE(type);
      CAPTURE(i);
      Options options = kinds[i];
      options["model_type"] = type;
      compare(texts(), std::move(options));
    }
}

TEST_CASE("a model as tokenizer.json has the same ids, where it has one") {
  const Options plain = {{"model_type", "bpe"},         {"normalization_rule_name", "identity"},
                         {"byte_fallback", "true"},     {"remove_extra_whitespaces", "false"},
                         {"vocab_size", "2000"},        {"minloglevel", "2"},
                         {"hard_vocab_limit", "false"}, {"character_coverage", "0.98"},
                         {"num_threads", "1"},          {"max_sentence_length", "20000"}};
  const auto changed = [&](const Options& by) {
    Options options = plain;
    for (const auto& [key, value] : by) options[key] = value;
    return train(options, texts().training());
  };
  const test::ScopedTempDir dir;
  for (const Options& by : {Options{{"add_dummy_prefix", "false"}, {"split_digits", "true"}},
                            Options{{"allow_whitespace_only_pieces", "true"}},
                            Options{{"control_symbols", "<a>,<b>"}}}) {
    const std::string model = changed(by);
    CAPTURE(by.begin()->first);
    const auto json = tokenizer_json_of_sentencepiece(model);
    REQUIRE(json);
    test::write_text(dir.path() / "m.model", model);
    test::write_text(dir.path() / "tokenizer.json", *json);
    const auto pieces = load_sentencepiece(dir.path() / "m.model").value();
    const auto loaded = load_hf_tokenizer(dir.path());
    REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().message));
    CHECK(vocabulary_hash(**loaded) == vocabulary_hash(*pieces));
    std::map<std::int32_t, int> seen;
    std::string repaired;
    for (const std::string& text : texts().questions()) {
      std::string valid(repair_utf8(text, repaired));
      // Written out, these are tokens for the tokenizer.json and plain text for the sentencepiece
      // model.
      for (const std::string_view control : {"<unk>", "<s>", "</s>", "<a>", "<b>"})
        for (std::size_t at; (at = valid.find(control)) != valid.npos;)
          valid.replace(at, control.size(), "<>");
      const Ids expected = encoded_behind(*pieces, valid);
      const Ids found = encoded_behind(**loaded, valid);
      const auto differ = std::ranges::mismatch(expected, found);
      const auto from = [](auto at, const Ids& ids, const Tokenizer& tokenizer) {
        std::string tokens;
        for (int i = 0; at != ids.end() && i < 4; ++at, ++i)
          tokens += fmt::format(" {} \"{}\"", *at, tokenizer.token_text(*at));
        return tokens;
      };
      CHECK_MESSAGE(found == expected, from(differ.in1, expected, *pieces), " is ",
                    from(differ.in2, found, **loaded), " in a text of ", valid.size(), " bytes");
      for (const std::int32_t id : expected) ++seen[id];
    }
    CHECK(seen.size() > 300);
  }
  for (const Options& by :
       {Options{{"model_type", "unigram"}}, Options{{"model_type", "char"}},
        Options{{"byte_fallback", "false"}}, Options{{"normalization_rule_name", "nmt_nfkc"}},
        Options{{"remove_extra_whitespaces", "true"}},
        Options{{"treat_whitespace_as_suffix", "true"}},
        Options{{"user_defined_symbols", "[SEP]"}}})
    CHECK_FALSE(tokenizer_json_of_sentencepiece(changed(by)));
  CHECK_FALSE(tokenizer_json_of_sentencepiece("no model"));
}

TEST_CASE("models of words and characters are left to the library") {
  for (const char* type : {"word", "char"}) {
    CAPTURE(type);
    compare(texts(), {{"model_type", type}, {"use_all_vocab", "true"}});
  }
}

TEST_CASE("where a text may be cut, the ids of the parts are those of the whole") {
  const test::ScopedTempDir dir;
  const Options options = {{"vocab_size", "2000"},
                           {"character_coverage", "0.98"},
                           {"minloglevel", "2"},
                           {"model_type", "bpe"},
                           {"normalization_rule_name", "identity"},
                           {"add_dummy_prefix", "false"},
                           {"remove_extra_whitespaces", "false"},
                           {"byte_fallback", "true"},
                           {"hard_vocab_limit", "false"},
                           {"max_sentence_length", "20000"}};
  test::write_text(dir.path() / "m.model", train(options, texts().training()));
  const auto tokenizer = load_sentencepiece(dir.path() / "m.model").value();
  const std::string text = test::MixedText(SORTIE_TEST_DATA "/tokenizer").make(5, 20'000);
  const Ids whole = encoded_behind(*tokenizer, text);
  int cuts = 0;
  for (std::size_t from = 1; from < text.size(); from += 97) {
    const std::size_t cut = tokenizer->find_cut(text, from);
    if (cut == std::string::npos) break;
    ++cuts;
    Ids ids = {7};
    REQUIRE(tokenizer->encode(std::string_view(text).substr(0, cut), ids));
    REQUIRE(tokenizer->encode(std::string_view(text).substr(cut), ids));
    CHECK(ids == whole);
  }
  CHECK(cuts > 100);
}

TEST_CASE("a trie finds each of its texts and no other") {
  std::vector<std::pair<std::string_view, std::int32_t>> entries = {
      {"a", 0},   {"ab", 1}, {"abc", 2}, {"b", 3}, {"\xe2\x96\x81", 4}, {"\xe2\x96\x81the", 5},
      {"\xff", 6}};
  const spm::PieceTrie trie(entries);
  const auto value = [&](std::string_view text) {
    spm::PieceTrie::Place place = 0;
    for (const char c : text)
      if (!trie.step(place, c)) return -1;
    return trie.value(place);
  };
  for (const auto& [text, id] : entries) CHECK(value(text) == id);
  for (const std::string_view absent : {"", "abcd", "c", "\xe2", "\xe2\x96\x81t", "ba"})
    CHECK(value(absent) == -1);
  CHECK(value(std::string_view("\0", 1)) == -1);
  CHECK(trie.longest_prefix("abd") == 2);
  CHECK(trie.longest_prefix("xab") == 0);
}

}  // namespace sortie::trainer
