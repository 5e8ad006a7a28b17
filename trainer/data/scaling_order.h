// ScalingOrder: reproduces the samples of TextDataset and BlendedDataset of Scaling (Aleph Alpha),
// in their order. See README.md, "Order".
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/epoch_order.h"

namespace sortie::trainer {

/// One epoch of one set of documents, packed: shuffled documents fill samples of sequence_length +
/// 1 tokens. A sample that ends inside a document shares its last token with the next sample; a
/// sample that ends with its document does not. The last sample is left out if it is not full, and
/// so are documents of a single token.
class ScalingPacking {
 public:
  /// `table` must outlive the object.
  ScalingPacking(const DocumentTable& table, std::int64_t sequence_length, std::uint32_t seed);

  std::uint64_t size() const { return starts_.size(); }
  /// Copies sample `index` (sequence_length + 1 tokens).
  Result<> read(std::uint64_t index, std::int64_t vocab_size, std::span<std::int32_t> out) const;

 private:
  struct Start {
    std::uint32_t place;  // index into documents_
    std::uint32_t skip;   // tokens of that document before the sample
  };
  std::uint64_t tokens_at(std::uint64_t place) const;

  const DocumentTable& table_;
  std::vector<std::uint32_t> documents_;
  std::vector<Start> starts_;
};

/// Number of samples that an epoch takes of each dataset: the fraction weight / largest weight of
/// its samples, at least one. Without weights: all samples. An empty dataset: 0.
std::vector<std::uint64_t> scaling_shares(std::span<const std::uint64_t> sizes,
                                          std::span<const double> weights);

/// The dataset of each sample of an epoch. The next sample always comes from the dataset with the
/// smallest used fraction of its share; ties go to the first dataset. Ends when all shares are used
/// up.
std::vector<std::uint16_t> scaling_blend(std::span<const std::uint64_t> shares);

struct ScalingOptions {
  std::vector<std::string> prefixes{};
  std::vector<double> weights{};  // one per prefix, or empty
  std::int64_t sequence_length = 256;
  std::int64_t vocab_size = 256;
  std::uint64_t seed = 42;
  /// Samples that all ranks together take in a micro-step. An epoch is a multiple of it.
  std::uint64_t group = 1;
};

/// The samples of all epochs. Epoch e is shuffled with seed + e, then packed and blended. Not
/// thread-safe.
class ScalingOrder {
 public:
  static Result<std::unique_ptr<ScalingOrder>> open(ScalingOptions options);
  ScalingOrder(const ScalingOrder&) = delete;  // tables point into the object

  /// Samples of the first epoch, rounded down to a multiple of `group`. All epochs are assumed to
  /// be as long, as in Scaling. If a later epoch is packed into fewer samples, its first samples
  /// are repeated (Scaling fails there).
  std::uint64_t samples_per_epoch() const { return per_epoch_; }
  Result<> read_sample(std::uint64_t sample, std::span<std::int32_t> out);
  /// Equal on ranks that see equal files.
  std::string fingerprint() const;

 private:
  struct Source {
    std::vector<TokenFile> files;  // exactly one
    DocumentTable table;
    explicit Source(TokenFile file);
  };
  struct Epoch {
    std::uint64_t number;
    std::vector<ScalingPacking> packed;  // per source
    std::vector<std::uint16_t> picks;    // source of each sample; empty if there is one source
    std::vector<std::uint64_t> before;   // per source: samples before every kStride-th pick
    std::uint64_t size() const { return picks.empty() ? packed[0].size() : picks.size(); }
  };
  explicit ScalingOrder(ScalingOptions options) : options_(std::move(options)) {}
  const Epoch& epoch(std::uint64_t number);

  static constexpr std::uint64_t kStride = 256;

  ScalingOptions options_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::uint64_t per_epoch_ = 0;
  std::list<Epoch> epochs_;  // most recently used first; a step can span two
};

}  // namespace sortie::trainer
