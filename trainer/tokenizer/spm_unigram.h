// Encoder for sentencepiece models of the type unigram: the library's Viterbi search with
// bit-identical sums, on a separate trie.
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

/// Immutable and thread-safe. Mutable state is in Scratch, one per thread.
class UnigramEncoder {
 public:
  /// The last piece of the best path to a position.
  struct Node {
    std::int32_t id = -1;
    float score = 0.0f;  // of the whole path
    std::int32_t begin = -1;
  };
  struct Scratch {
    std::string text{};  // normalised
    std::vector<Node> nodes{};
    std::vector<std::int32_t> path{};  // ends of the pieces, last first
  };

  /// Returns nullopt for models that only the library supports, such as those with unused pieces.
  static std::optional<UnigramEncoder> create(const Model& model, Normalizer normalizer);

  /// Appends the ids of `text`. Needs about 15 bytes of memory per byte of text.
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
  float least_ = 0.0f, most_ = 0.0f;  // lowest and highest score of normal pieces
};

}  // namespace sortie::trainer::spm
