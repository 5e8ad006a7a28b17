// EpochOrder: maps sample i of one epoch to its tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/data/permutation.h"
#include "trainer/data/token_file.h"

namespace sortie::trainer {

/// The documents of several files, numbered consecutively in the order of the files.
class DocumentTable {
 public:
  /// The files must outlive the table.
  explicit DocumentTable(const std::vector<TokenFile>& files);

  struct Place {
    const TokenFile* file;
    std::uint64_t document;  // within the file
  };
  Place place(std::uint64_t document) const;
  std::uint64_t size() const { return first_.back(); }
  std::uint64_t tokens() const { return tokens_; }

 private:
  const std::vector<TokenFile>& files_;
  std::vector<std::uint64_t> first_;  // number of the first document of each file, then the total
  std::uint64_t tokens_ = 0;
};

/// The order of samples in one epoch. The documents, in shuffled order, form one stream of tokens.
/// Sample i of the stream is sequence_length + 1 tokens and shares one token with the next sample.
/// The samples are read in a second shuffled order, so that one long document does not fill a
/// batch. The result is a pure function of (seed, epoch, sample). Without `shuffle`, both orders
/// are as stored.
class EpochOrder {
 public:
  /// `table` must outlive the order.
  EpochOrder(const DocumentTable& table, std::int64_t sequence_length, std::uint64_t seed,
             std::uint64_t epoch, bool shuffle);

  std::uint64_t epoch() const { return epoch_; }
  /// Copies sample `index` (sequence_length + 1 tokens).
  Result<> read(std::uint64_t index, std::int64_t vocab_size, std::span<std::int32_t> out) const;

  /// Samples per epoch. The last tokens that do not fill a sample are left out.
  static std::uint64_t num_samples(std::uint64_t tokens, std::int64_t sequence_length) {
    return tokens == 0 ? 0 : (tokens - 1) / static_cast<std::uint64_t>(sequence_length);
  }

 private:
  std::uint64_t document_at(std::uint64_t position) const {
    return shuffle_ ? documents_(position) : position;
  }

  /// starts_ holds the stream position of every kStride-th document. Positions between them are
  /// computed by adding lengths.
  static constexpr std::uint64_t kStride = 32;

  const DocumentTable& table_;
  std::int64_t sequence_length_;
  std::uint64_t epoch_;
  bool shuffle_;
  Permutation documents_;
  Permutation samples_;
  std::vector<std::uint64_t> starts_;
};

}  // namespace sortie::trainer
