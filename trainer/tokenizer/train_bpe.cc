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
#include "trainer/tokenizer/tokenizer_json.h"
#include "trainer/tokenizer/unicode.h"

namespace sortie::trainer {
namespace {

using OrderedJson = nlohmann::ordered_json;

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

/// The unit of work of a thread: a part of a large file, or several small files. Opening a small
/// file takes longer than counting its words, so all threads open files. Small files are read, not
/// mapped, because the number of mappings is limited.
struct Portion {
  struct File {
    std::filesystem::path path;
    std::size_t bytes;  // number of bytes to use
  };
  std::string_view text{};    // part of a mapped file, or
  std::vector<File> files{};  // small files
  std::uint64_t bytes = 0;
};

class TrainingText {
 public:
  explicit TrainingText(bool keep_non_text) : keep_non_text_(keep_non_text) {}

  Result<> add(const std::filesystem::path& path, std::uint64_t most) {
    std::error_code error;
    const std::uint64_t size = std::filesystem::file_size(path, error);
    if (error) return std::unexpected(os_error(error.value(), "open " + path.string()));
    const std::uint64_t used = std::min(size, most);
    bytes_ += used;
    if (used > kSmall) return add_large(path, used);
    if (small_.bytes + used > kPortion) close_small();
    small_.files.push_back({path, static_cast<std::size_t>(used)});
    small_.bytes += used;
    return {};
  }
  /// Must be called after the last file.
  void close_small() {
    if (!small_.files.empty()) portions_.push_back(std::move(small_));
    small_ = {};
  }
  const std::vector<Portion>& portions() const { return portions_; }
  std::uint64_t bytes() const { return bytes_; }
  const LeftOutText& left_out() const { return left_out_; }

 private:
  static constexpr std::size_t kPortion = std::size_t{1} << 20, kSmall = kPortion / 4;

  Result<> add_large(const std::filesystem::path& path, std::uint64_t used) {
    SORTIE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path, ErrorCode::io));
    std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
    text = utf8_prefix(text, used);
    const TextKind kind = kind_of_text(text, keep_non_text_);
    left_out_.add(kind, text.size(), path.string());
    if (kind != TextKind::text) return {};
    // Cut so that threads can share the text. The words do not change.
    while (!text.empty()) {
      const std::size_t cut = text.size() > kPortion ? find_word_cut(text, kPortion) : text.size();
      Portion& portion = portions_.emplace_back();
      portion.text = text.substr(0, cut);
      portion.bytes = portion.text.size();
      text.remove_prefix(portion.bytes);
    }
    mapped_.push_back(std::move(file));
    return {};
  }

  std::vector<MappedFile> mapped_;
  std::vector<Portion> portions_;
  Portion small_;
  bool keep_non_text_;
  std::uint64_t bytes_ = 0;
  LeftOutText left_out_;
};

/// Counts the words of the portions, with several threads.
class WordCounter {
 public:
  WordCounter(const BpeTraining& training, const TrainingText& corpus)
      : pattern_(training.pattern),
        keep_non_text_(training.keep_non_text),
        corpus_(corpus),
        progress_(training.progress) {}

  /// The result is sorted by word, so that the order does not depend on threads.
  Result<std::map<std::string, std::int64_t>> count(int threads) {
    std::vector<Thread> all(static_cast<std::size_t>(std::max(threads, 1)));
    {
      std::vector<std::jthread> helpers;
      for (std::size_t i = 1; i < all.size(); ++i)
        helpers.emplace_back([this, &own = all[i]] { count_portions(own, /*report=*/false); });
      count_portions(all[0], /*report=*/true);
    }
    std::map<std::string, std::int64_t> words;
    std::map<std::size_t, const Thread::Seen*> seen;  // in the order of the portions
    for (const Thread& own : all) {
      if (own.error) return std::unexpected(*own.error);
      for (const auto& [word, number] : own.counts) words[word] += number;
      for (const auto& one : own.left_out) seen.emplace(one.portion, &one);
    }
    for (const auto& [portion, one] : seen) left_out_.add(one->left_out);
    return words;
  }
  /// Small files that are not text. Valid after count().
  const LeftOutText& left_out() const { return left_out_; }

 private:
  struct Thread {
    struct Seen {
      std::size_t portion;
      LeftOutText left_out;
    };
    WordCounts counts;
    std::vector<Seen> left_out;
    std::optional<Error> error;
    std::string content, repaired, normalized;
  };

  void count_portions(Thread& own, bool report) {
    for (std::size_t index; !own.error && (index = next_++) < corpus_.portions().size();) {
      const Portion& portion = corpus_.portions()[index];
      count_words(portion.text, own);
      if (const Result<> read = count_files(portion, index, own); !read) own.error = read.error();
      const std::uint64_t done = bytes_done_ += portion.bytes;
      if (report && progress_) progress_({"counting words", done, corpus_.bytes()});
    }
  }

  Result<> count_files(const Portion& portion, std::size_t index, Thread& own) {
    LeftOutText left_out;
    for (const Portion::File& file : portion.files) {
      SORTIE_ASSIGN_OR_RETURN(own.content, read_file(file.path));
      const std::string_view text = utf8_prefix(own.content, file.bytes);
      const TextKind kind = kind_of_text(text, keep_non_text_);
      left_out.add(kind, text.size(), file.path.string());
      if (kind == TextKind::text) count_words(text, own);
    }
    if (left_out.count() > 0) own.left_out.push_back({index, std::move(left_out)});
    return {};
  }

  void count_words(std::string_view text, Thread& own) const {
    text = repair_utf8(text, own.repaired);
    if (has_nfc(pattern_)) text = normalize_nfc(text, own.normalized);
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = word_end(pattern_, text, at);
      const std::string_view word = text.substr(at, end - at);
      if (const auto found = own.counts.find(word); found != own.counts.end())
        ++found->second;
      else
        own.counts.emplace(word, 1);
      at = end;
    }
  }

  WordPattern pattern_;
  bool keep_non_text_;
  const TrainingText& corpus_;
  const OnProgress& progress_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<std::uint64_t> bytes_done_ = 0;
  LeftOutText left_out_;
};

std::string to_json(const BpeTraining& training, const BpeLearner& learner) {
  OrderedJson root = empty_tokenizer_json();
  for (std::size_t i = 0; i < training.special_tokens.size(); ++i)
    root["added_tokens"].push_back(
        special_token_json(static_cast<std::int32_t>(i), training.special_tokens[i]));
  const bool is_gpt2 = training.pattern == WordPattern::gpt2;
  const OrderedJson byte_level = byte_level_json(/*trim_offsets=*/true, /*use_regex=*/is_gpt2);
  OrderedJson steps = OrderedJson::array();
  for (const std::string& regex : regexes_of_word_pattern(training.pattern))
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", regex}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  steps.push_back(byte_level);
  if (has_nfc(training.pattern)) root["normalizer"] = {{"type", "NFC"}};
  root["pre_tokenizer"] = byte_level;
  if (!is_gpt2) root["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  root["decoder"] = byte_level;
  std::vector<TokenPair> merges;
  for (const auto& merge : learner.merges()) merges.push_back({merge.left, merge.right});
  return tokenizer_json_text(std::move(root), learner.tokens(), merges);
}

/// The tokens before the first merge: special tokens, then bytes in the order of their letters.
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
    return fail(ErrorCode::usage, "train-tokenizer: a special token is given twice");
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
  TrainingText corpus(training.keep_non_text);
  for (const auto& path : training.files) {
    if (corpus.bytes() >= training.max_bytes) break;
    SORTIE_TRY(corpus.add(path, training.max_bytes - corpus.bytes()));
  }
  corpus.close_small();
  WordCounter counter(training, corpus);
  SORTIE_ASSIGN_OR_RETURN(const auto words, counter.count(training.threads));
  result.left_out = corpus.left_out();
  result.left_out.add(counter.left_out());
  result.text_bytes = corpus.bytes() - result.left_out.bytes;
  result.words = words.size();
  if (words.empty()) return std::unexpected(no_text(result.left_out));

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
  learner.learn(training.vocab_size, training.min_count, [&](std::size_t learnt) {
    if (training.progress && learnt % 64 == 0)
      training.progress(
          {"learning merges", learnt, static_cast<std::uint64_t>(training.vocab_size), "tokens"});
  });
  result.vocab_size = static_cast<std::int64_t>(learner.tokens().size());
  SORTIE_TRY(write_file_atomic(training.output, to_json(training, learner)));
  return result;
}

}  // namespace sortie::trainer
