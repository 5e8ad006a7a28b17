// Dataset: samples of token ids from token files, by their global number, in an order that depends
// on nothing but the seed.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "trainer/data/epoch_order.h"
#include "trainer/data/megatron_order.h"
#include "trainer/data/token_file.h"

namespace sortie::trainer {

struct DatasetOptions {
  std::vector<std::string> prefixes{};  // all their documents together are the data
  std::int64_t sequence_length = 256;
  std::int64_t vocab_size = 256;  // an id at or above it is an error
  std::uint64_t seed = 42;
  bool shuffle = true;  // false for validation: files, documents and samples as stored
  /// Megatron's order for so many samples, which is then used in place of ours; 0 = ours.
  std::uint64_t megatron_samples = 0;
};

/// Not thread-safe: one thread at a time.
class Dataset {
 public:
  static Result<std::unique_ptr<Dataset>> open(DatasetOptions options);
  Dataset(Dataset&&) = delete;  // the table points into the object

  /// One sample (sequence_length + 1 tokens) by its global number; epochs follow one another.
  Result<> read_sample(std::uint64_t sample, std::span<std::int32_t> out);

  std::uint64_t samples_per_epoch() const { return samples_per_epoch_; }
  std::uint64_t num_tokens() const { return table_.tokens(); }
  std::uint64_t num_documents() const { return table_.size(); }
  /// Equal on ranks that see equal files (see TokenFile::fingerprint).
  std::string fingerprint() const;
  /// For people: what the order of the samples depends on beside the seed; empty where that is
  /// nothing.
  std::string order_text() const;
  const DatasetOptions& options() const { return options_; }

 private:
  Dataset(DatasetOptions options, std::vector<TokenFile> files);
  const EpochOrder& order(std::uint64_t epoch);
  Result<> check_megatron() const;

  DatasetOptions options_;
  std::vector<TokenFile> files_;
  DocumentTable table_;
  std::uint64_t samples_per_epoch_;
  std::optional<MegatronOrder> megatron_;
  std::list<EpochOrder> orders_;  // most recent first; a batch can touch two epochs
};

}  // namespace sortie::trainer
