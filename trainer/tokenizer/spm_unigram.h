// Encoder of sentencepiece models of the type unigram: the library's Viterbi search, to the bit of
// its sums, on a trie of its own.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/tokenizer/spm_ids.h"
#include "trainer/tokenizer/spm_model.h"
#include "trainer/tokenizer/spm_normalizer.h"
#include "trainer/tokenizer/spm_trie.h"

namespace sortie::trainer::spm {

/// Immutable and shared between threads; what a thread changes is in its Scratch.
class UnigramEncoder {
 public:
  /// The last piece of the best path to a place.
  struct Node {
    std::int32_t id = -1;
    float score = 0.0f;  // of the path
    std::int32_t begin = -1;
  };
  struct Scratch {
    std::string text{};  // normalised
    std::vector<Node> nodes{};
    std::vector<std::int32_t> path{};  // ends of the pieces, last first
  };

  /// Absent for models that only the library understands: with unused pieces.
  static std::optional<UnigramEncoder> create(const Model& model, Normalizer normalizer);

  /// Appends the ids of `text`, with memory for some 15 bytes per byte of it.
  void encode(std::string_view text, Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  UnigramEncoder(Normalizer normalizer, IdRules rules)
      : normalizer_(std::move(normalizer)), rules_(rules) {}
  void find_path(Scratch& scratch) const;

  Normalizer normalizer_;
  IdRules rules_;
  PieceTrie trie_;
  std::vector<float> scores_;
  std::vector<bool> user_defined_;
  float least_ = 0.0f, most_ = 0.0f;  // of the scores of normal pieces
};

}  // namespace sortie::trainer::spm
