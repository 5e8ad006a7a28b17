// Dataset: reads samples of token ids from token files by their global number. The order of samples
// is a function of the seed alone (Megatron's order: also of the total number of samples).
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
  std::vector<std::string> prefixes{};  // the data are all their documents together
  std::int64_t sequence_length = 256;
  std::int64_t vocab_size = 256;  // an id at or above it is an error
  std::uint64_t seed = 42;
  bool shuffle = true;  // false for validation: files, documents and samples in stored order
  /// If not 0 and `shuffle`: use Megatron's order for a run of this many samples. 0: our own order.
  std::uint64_t megatron_samples = 0;
};

/// Not thread-safe.
class Dataset {
 public:
  static Result<std::unique_ptr<Dataset>> open(DatasetOptions options);
  Dataset(Dataset&&) = delete;  // table_ refers to files_

  /// Reads one sample (sequence_length + 1 tokens). Global numbers continue across epochs.
  Result<> read_sample(std::uint64_t sample, std::span<std::int32_t> out);

  std::uint64_t samples_per_epoch() const { return samples_per_epoch_; }
  std::uint64_t num_tokens() const { return table_.tokens(); }
  std::uint64_t num_documents() const { return table_.size(); }
  /// Equal on ranks that see equal files (see TokenFile::fingerprint).
  std::string fingerprint() const;
  /// Describes for people what the order of samples depends on besides the seed. Empty if nothing.
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
  std::list<EpochOrder> orders_;  // most recently used first; a batch can span two epochs
};

}  // namespace sortie::trainer
