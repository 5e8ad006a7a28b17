// MegatronOrder: reproduces the samples of Megatron's GPTDataset, in its order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/data/epoch_order.h"

namespace sortie::trainer {

/// The documents of as many epochs as `samples` requires form one stream and are shuffled together;
/// the last epoch is shuffled separately if less than 80 % of it is needed. Sample i of the stream
/// is sequence_length + 1 tokens and shares one token with the next sample. The samples are read in
/// a second shuffled order.
class MegatronOrder {
 public:
  /// `table` must outlive the order. `samples` is the number that training needs; the order depends
  /// on it.
  MegatronOrder(const DocumentTable& table, std::int64_t sequence_length, std::uint32_t seed,
                std::uint64_t samples);

  /// Number of samples, at least the requested `samples`.
  std::uint64_t size() const { return shuffled_.size(); }
  /// Copies sample `index` of training (sequence_length + 1 tokens). Starts over after size()
  /// samples.
  Result<> read(std::uint64_t index, std::int64_t vocab_size, std::span<std::int32_t> out) const;

  /// Describes how the order depends on `samples`, such as "3 epochs, the last apart".
  std::string text() const;

  /// The index arrays that Megatron caches. For tests.
  std::span<const std::uint32_t> document_index() const { return documents_; }
  std::span<const std::uint32_t> shuffle_index() const { return shuffled_; }
  /// Start of sample `sample` of the stream: index into document_index(), and token offset within
  /// that document.
  std::pair<std::uint64_t, std::uint64_t> sample_index(std::uint64_t sample) const;

 private:
  std::uint64_t tokens_at(std::uint64_t place) const;

  static constexpr std::uint64_t kStride = 32;  // starts_ holds every kStride-th document start

  const DocumentTable& table_;
  std::int64_t sequence_length_;
  std::uint64_t epochs_ = 1;
  bool last_apart_ = false;
  std::vector<std::uint32_t> documents_;
  std::vector<std::uint32_t> shuffled_;
  std::vector<std::uint64_t> starts_;  // positions in the stream, in tokens
};

}  // namespace sortie::trainer
