// MegatronOrder: the samples of Megatron's GPTDataset, in its order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/data/epoch_order.h"

namespace sortie::trainer {

/// As many epochs as `samples` need form one stream of documents, shuffled together (the last one
/// for itself when less than 80 % of it is needed); sample i is sequence_length + 1 tokens of the
/// stream and shares one token with the next; the samples are taken in a second shuffled order.
class MegatronOrder {
 public:
  /// The table must outlive the order. `samples` is what training needs: it decides the order.
  MegatronOrder(const DocumentTable& table, std::int64_t sequence_length, std::uint32_t seed,
                std::uint64_t samples);

  /// Samples there are, at least those asked for.
  std::uint64_t size() const { return shuffled_.size(); }
  /// Copies the index-th sample of training (sequence_length + 1 tokens).
  Result<> read(std::uint64_t index, std::int64_t vocab_size, std::span<std::int32_t> out) const;

  /// What `samples` decides of the order, "3 epochs, the last apart".
  std::string text() const;

  // As Megatron caches them.
  std::span<const std::uint32_t> document_index() const { return documents_; }
  std::span<const std::uint32_t> shuffle_index() const { return shuffled_; }
  /// Where stream sample `sample` begins: place in document_index(), token of that document.
  std::pair<std::uint64_t, std::uint64_t> sample_index(std::uint64_t sample) const;

 private:
  std::uint64_t tokens_at(std::uint64_t place) const;

  static constexpr std::uint64_t kStride = 32;  // every so many starts are kept

  const DocumentTable& table_;
  std::int64_t sequence_length_;
  std::uint64_t epochs_ = 1;
  bool last_apart_ = false;
  std::vector<std::uint32_t> documents_;
  std::vector<std::uint32_t> shuffled_;
  std::vector<std::uint64_t> starts_;  // in the stream
};

}  // namespace sortie::trainer
