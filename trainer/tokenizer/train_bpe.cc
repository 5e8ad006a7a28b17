#include "trainer/tokenizer/train_bpe.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>

#include "common/base/atomic_file.h"
#include "trainer/storage/mapped_file.h"
#include "trainer/tokenizer/bpe_learner.h"
#include "trainer/tokenizer/byte_letters.h"
#include "trainer/tokenizer/nfc.h"
#include "trainer/tokenizer/unicode.h"

namespace sortie::trainer {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kVocabMark = "@vocab";
constexpr const char* kMergesMark = "@merges";

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};
using WordCounts = std::unordered_map<std::string, std::int64_t, TextHash, std::equal_to<>>;

bool has_nfc(WordPattern pattern) {
  return pattern == WordPattern::qwen2 || pattern == WordPattern::qwen35;
}

/// Counts the words of parts of files, which several threads take one after the other.
class WordCounter {
 public:
  WordCounter(WordPattern pattern, std::vector<std::string_view> parts)
      : pattern_(pattern), parts_(std::move(parts)) {}

  /// By word, so that their order does not depend on threads.
  std::map<std::string, std::int64_t> count(int threads) {
    std::vector<WordCounts> counts(static_cast<std::size_t>(std::max(threads, 1)));
    std::vector<std::jthread> helpers;
    for (std::size_t i = 1; i < counts.size(); ++i)
      helpers.emplace_back([this, &own = counts[i]] { count_parts(own); });
    count_parts(counts[0]);
    helpers.clear();
    std::map<std::string, std::int64_t> all;
    for (const WordCounts& own : counts)
      for (const auto& [word, number] : own) all[word] += number;
    return all;
  }

 private:
  void count_parts(WordCounts& counts) {
    std::string repaired;
    std::string normalized;
    for (std::size_t part; (part = next_++) < parts_.size();) {
      std::string_view text = repair_utf8(parts_[part], repaired);
      if (has_nfc(pattern_)) text = normalize_nfc(text, normalized);
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = word_end(pattern_, text, at);
        const std::string_view word = text.substr(at, end - at);
        if (const auto found = counts.find(word); found != counts.end())
          ++found->second;
        else
          counts.emplace(word, 1);
        at = end;
      }
    }
  }

  WordPattern pattern_;
  std::vector<std::string_view> parts_;
  std::atomic<std::size_t> next_ = 0;
};

/// Cuts a text so that threads can share it; the words stay the same.
void add_parts(std::string_view text, std::vector<std::string_view>& parts) {
  constexpr std::size_t kPart = std::size_t{1} << 20;
  while (!text.empty()) {
    const std::size_t cut = text.size() > kPart ? find_word_cut(text, kPart) : text.size();
    parts.push_back(text.substr(0, cut));
    text.remove_prefix(parts.back().size());
  }
}

std::string to_json(const BpeTraining& training, const BpeLearner& learner) {
  Json added = Json::array();
  for (std::size_t i = 0; i < training.special_tokens.size(); ++i)
    added.push_back({{"id", i},
                     {"content", training.special_tokens[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  const bool is_gpt2 = training.pattern == WordPattern::gpt2;
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", is_gpt2}};
  Json steps = Json::array();
  for (const std::string& regex : regexes_of_word_pattern(training.pattern))
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", regex}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  steps.push_back(byte_level);
  Json root = {{"version", "1.0"},
               {"truncation", nullptr},
               {"padding", nullptr},
               {"added_tokens", added},
               {"normalizer", has_nfc(training.pattern) ? Json{{"type", "NFC"}} : Json()},
               {"pre_tokenizer", byte_level},
               {"post_processor", nullptr},
               {"decoder", byte_level},
               {"model",
                {{"type", "BPE"},
                 {"dropout", nullptr},
                 {"unk_token", nullptr},
                 {"continuing_subword_prefix", nullptr},
                 {"end_of_word_suffix", nullptr},
                 {"fuse_unk", false},
                 {"byte_fallback", false},
                 {"ignore_merges", false},
                 {"vocab", kVocabMark},
                 {"merges", kMergesMark}}}};
  if (!is_gpt2) root["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  // The two long lists are written by hand: an ordered object looks at all its keys for each.
  const std::string frame = root.dump(1);
  const std::string vocab_mark = fmt::format("\"{}\"", kVocabMark);
  const std::string merges_mark = fmt::format("\"{}\"", kMergesMark);
  const std::size_t vocab_at = frame.rfind(vocab_mark);
  const std::size_t merges_at = frame.rfind(merges_mark);
  std::string text = frame.substr(0, vocab_at) + "{";
  const auto token = [&](std::int32_t id) {
    return Json(learner.tokens()[static_cast<std::size_t>(id)]).dump();
  };
  for (std::int32_t id = 0; id < static_cast<std::int32_t>(learner.tokens().size()); ++id)
    text += fmt::format("{}\n   {}: {}", id == 0 ? "" : ",", token(id), id);
  text += "\n  }" +
          frame.substr(vocab_at + vocab_mark.size(), merges_at - vocab_at - vocab_mark.size()) +
          "[";
  for (std::size_t i = 0; i < learner.merges().size(); ++i)
    text += fmt::format("{}\n   [{}, {}]", i == 0 ? "" : ",", token(learner.merges()[i].left),
                        token(learner.merges()[i].right));
  return text + "\n  ]" + frame.substr(merges_at + merges_mark.size()) + "\n";
}

/// The tokens before the first merge: specials, then bytes in the order of their letters.
std::vector<std::string> first_tokens(const BpeTraining& training) {
  std::vector<char32_t> letters;
  for (int byte = 0; byte < 256; ++byte)
    letters.push_back(hf::char_of_byte(static_cast<std::uint8_t>(byte)));
  std::sort(letters.begin(), letters.end());
  std::vector<std::string> tokens = training.special_tokens;
  for (const char32_t letter : letters) append_utf8(tokens.emplace_back(), letter);
  return tokens;
}

Result<> check(const BpeTraining& training) {
  const std::size_t first = training.special_tokens.size() + 256;
  if (training.pattern == WordPattern::whole)
    return fail(ErrorCode::usage, "train-tokenizer: a pattern is needed");
  if (training.vocab_size < static_cast<std::int64_t>(first))
    return fail(ErrorCode::usage, fmt::format("train-tokenizer: a vocabulary of {} has no place "
                                              "for 256 bytes and {} special tokens",
                                              training.vocab_size, first - 256));
  std::vector<std::string> sorted = training.special_tokens;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    return fail(ErrorCode::usage, "train-tokenizer: a special token is there twice");
  for (const std::string& token : sorted)
    if (const auto bytes = hf::bytes_of_token(token);
        token.empty() || valid_utf8_prefix(token) != token.size() || (bytes && bytes->size() == 1))
      return fail(ErrorCode::usage,
                  fmt::format("train-tokenizer: \"{}\" can be no special token", token));
  return {};
}

}  // namespace

Result<BpeTrainingResult> train_bpe(const BpeTraining& training) {
  SORTIE_TRY(check(training));
  BpeTrainingResult result;
  std::vector<MappedFile> files;
  std::vector<std::string_view> parts;
  for (const auto& path : training.files) {
    if (result.text_bytes >= training.max_bytes) break;
    SORTIE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path, ErrorCode::io));
    std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
    text = text.substr(0, training.max_bytes - result.text_bytes);
    result.text_bytes += text.size();
    add_parts(text, parts);
    files.push_back(std::move(file));
  }
  const auto words = WordCounter(training.pattern, std::move(parts)).count(training.threads);
  result.words = words.size();

  std::vector<std::string> tokens = first_tokens(training);
  std::array<std::int32_t, 256> byte_ids{};
  for (std::size_t i = training.special_tokens.size(); i < tokens.size(); ++i)
    byte_ids[static_cast<unsigned char>(hf::bytes_of_token(tokens[i])->front())] =
        static_cast<std::int32_t>(i);
  BpeLearner learner(std::move(tokens));
  std::vector<std::int32_t> symbols;
  for (const auto& [word, count] : words) {
    symbols.clear();
    for (const char byte : word) symbols.push_back(byte_ids[static_cast<unsigned char>(byte)]);
    learner.add_word(symbols, count);
  }
  learner.learn(training.vocab_size, training.min_count);
  result.vocab_size = static_cast<std::int64_t>(learner.tokens().size());
  SORTIE_TRY(write_file_atomic(training.output, to_json(training, learner)));
  return result;
}

}  // namespace sortie::trainer
