// Encoder of sentencepiece models of the type BPE. The ids are those of the library, which merges a
// text as a whole; here it is cut first at places that no piece reaches across, so that words are
// merged alone, and remembered.
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

/// Immutable and shared between threads; what a thread changes is in its Scratch.
class BpeEncoder {
 public:
  struct Symbol {
    std::uint32_t begin = 0, size = 0;  // bytes of the word; size 0 = merged into another
    bool frozen = false;                // a user-defined symbol, which is never merged
    std::int32_t previous = -1, next = -1;
  };
  struct Candidate {
    float score;
    std::int32_t left, right;
    std::uint32_t size;
  };
  struct Scratch {
    WordCache cache{};
    std::string text{};                // normalised, of what is not yet encoded
    std::vector<std::size_t> ends{};   // of words in it that wait
    std::vector<std::int32_t> word{};  // ids of a word
    std::vector<Symbol> symbols{};
    std::vector<Candidate> heap{};
  };

  /// Absent for models that only the library understands: with unused pieces, or with reserved
  /// pieces of one character.
  static std::optional<BpeEncoder> create(const Model& model, Normalizer normalizer);

  /// Appends the ids of `text`.
  void encode(std::string_view text, Scratch& scratch, std::vector<std::int32_t>& ids) const;

  /// As Tokenizer::find_cut.
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
  /// Cuts scratch.text and encodes its words; leaves what may still change when not at the `end`.
  void encode_words(Scratch& scratch, bool end, std::size_t begin,
                    std::vector<std::int32_t>& ids) const;
  void encode_word(std::string_view word, std::size_t readable, Scratch& scratch, std::size_t begin,
                   std::vector<std::int32_t>& ids) const;
  void merge_word(std::string_view word, Scratch& scratch) const;
  void offer(std::string_view word, std::int32_t left, std::int32_t right, Scratch& scratch) const;

  Normalizer normalizer_;
  IdRules rules_;
  std::vector<std::string> texts_;  // that the keys of pieces_ are
  std::unordered_map<std::string_view, Known> pieces_;
  std::size_t longest_symbol_ = 0;  // user-defined
  /// Neighbouring characters of any piece; those of ASCII and the space have a table.
  static constexpr std::uint32_t kSpaceCode = 128, kTable = 129;
  std::bitset<kTable * kTable> joined_;
  std::unordered_set<std::uint64_t> joined_others_;
};

}  // namespace sortie::trainer::spm
