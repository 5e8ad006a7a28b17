// BpeLearner: learns a list of merge rules from words and their counts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trainer/tokenizer/bpe_merges.h"

namespace sortie::trainer {

/// Counts by pair, in a flat hash table.
class PairCounts {
 public:
  std::int64_t& operator[](std::uint64_t pair);

 private:
  struct Slot {
    std::uint64_t pair = kEmpty;
    std::int64_t count = 0;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  Slot& slot_of(std::uint64_t pair);
  std::vector<Slot> slots_ = std::vector<Slot>(1 << 16);
  std::size_t used_ = 0;
};

class BpeLearner {
 public:
  /// `tokens` are the tokens before any merge (special tokens and bytes), by id.
  explicit BpeLearner(std::vector<std::string> tokens);

  /// `symbols` are the ids of the word's characters.
  void add_word(const std::vector<std::int32_t>& symbols, std::int64_t count);

  /// Merges the most frequent pair until there are `vocab_size` tokens or no pair occurs at least
  /// `min_count` times. Calls `each` with the number of tokens after every merge.
  void learn(std::int64_t vocab_size, std::int64_t min_count,
             const std::function<void(std::size_t tokens)>& each = {});

  const std::vector<std::string>& tokens() const { return tokens_; }
  const std::vector<Merge>& merges() const { return merges_; }

 private:
  using Places = std::vector<std::uint32_t>;  // word indices, ascending
  struct Word {
    std::uint64_t begin = 0;  // index into symbols_
    std::uint32_t size = 0;
    std::int64_t count = 0;
  };
  /// A pair that may be merged next. Its count may be out of date. New occurrences of a pair get a
  /// separate candidate with their own places.
  struct Candidate {
    std::int64_t count = 0;
    std::uint64_t pair = 0;
    Places places{};
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 |
           static_cast<std::uint32_t>(right);
  }
  std::int32_t token_id(std::string_view token);
  void change(std::uint64_t pair, std::int64_t by, std::uint32_t word);
  void merge_in_word(std::uint32_t word, const Merge& merge);
  void push(Candidate candidate);
  Candidate pop();
  void push_new_candidates();

  std::vector<std::string> tokens_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<Merge> merges_;
  std::vector<Word> words_;
  std::vector<std::int32_t> symbols_;
  PairCounts counts_;
  std::unordered_map<std::uint64_t, Places> new_places_;  // occurrences not yet in queue_
  std::vector<Candidate> queue_;                          // a heap
};

}  // namespace sortie::trainer
