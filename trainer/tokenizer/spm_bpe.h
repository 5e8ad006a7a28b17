// Encoder for sentencepiece models of the type BPE. The ids are those of the library, which merges
// a text as a whole. This encoder first cuts the text at positions that no piece spans. It then
// merges each word separately and caches the result.
#pragma once

#include <bitset>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "trainer/tokenizer/spm_ids.h"
#include "trainer/tokenizer/spm_model.h"
#include "trainer/tokenizer/spm_normalizer.h"
#include "trainer/tokenizer/word_cache.h"

namespace sortie::trainer::spm {

/// Immutable and thread-safe. Mutable state is in Scratch, one per thread.
class BpeEncoder {
 public:
  struct Symbol {
    std::uint32_t begin = 0, size = 0;  // bytes of the word; size 0 = merged into another
    bool frozen = false;                // a user-defined symbol, never merged
    std::int32_t previous = -1, next = -1;
  };
  struct Candidate {
    float score;
    std::int32_t left, right;
    std::uint32_t size;
  };
  struct Scratch {
    WordCache cache{};
    std::string text{};                // normalised text that is not yet encoded
    std::vector<std::size_t> ends{};   // ends of words in `text` that are not yet encoded
    std::vector<std::int32_t> word{};  // ids of one word
    std::vector<Symbol> symbols{};
    std::vector<Candidate> heap{};
  };

  /// Returns nullopt for models that only the library supports, such as those with unused pieces or
  /// with reserved pieces of one character.
  static std::optional<BpeEncoder> create(const Model& model, Normalizer normalizer);

  /// Appends the ids of `text`.
  void encode(std::string_view text, Scratch& scratch, std::vector<std::int32_t>& ids) const;

  /// See Tokenizer::find_cut.
  std::size_t find_cut(std::string_view text, std::size_t from) const;

 private:
  struct Known {
    std::int32_t id = -1;
    float score = 0.0f;
  };
  explicit BpeEncoder(Normalizer normalizer, IdRules rules)
      : normalizer_(std::move(normalizer)), rules_(rules) {}

  static std::uint32_t code_of(std::string_view character);
  bool joins(std::uint32_t left, std::uint32_t right) const;
  void add_pairs(std::string_view piece);
  /// Cuts scratch.text into words and encodes them. Unless `end`, keeps the words that may still
  /// change.
  void encode_words(Scratch& scratch, bool end, std::size_t begin,
                    std::vector<std::int32_t>& ids) const;
  void encode_word(std::string_view word, std::size_t readable, Scratch& scratch, std::size_t begin,
                   std::vector<std::int32_t>& ids) const;
  void merge_word(std::string_view word, Scratch& scratch) const;
  void offer(std::string_view word, std::int32_t left, std::int32_t right, Scratch& scratch) const;

  Normalizer normalizer_;
  IdRules rules_;
  std::vector<std::string> texts_;  // own the keys of pieces_
  std::unordered_map<std::string_view, Known> pieces_;
  std::size_t longest_symbol_ = 0;  // bytes of the longest user-defined symbol
  /// Pairs of adjacent characters in any piece. Pairs of ASCII characters and the space symbol are
  /// in a table, the others in a set.
  static constexpr std::uint32_t kSpaceCode = 128, kTable = 129;
  std::bitset<kTable * kTable> joined_;
  std::unordered_set<std::uint64_t> joined_others_;
};

}  // namespace sortie::trainer::spm
