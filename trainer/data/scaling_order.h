// ScalingOrder: the samples of Scaling's (Aleph Alpha) TextDataset and BlendedDataset, in its
// order. See README.md, "Order".
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
/// 1 tokens. A sample that ends inside of a document shares its last token with the next one; one
/// that ends with its document does not. The last, unfilled one is left out, as are documents of a
/// single token.
class ScalingPacking {
 public:
  /// The table must outlive it.
  ScalingPacking(const DocumentTable& table, std::int64_t sequence_length, std::uint32_t seed);

  std::uint64_t size() const { return starts_.size(); }
  /// Copies sample `index` (sequence_length + 1 tokens).
  Result<> read(std::uint64_t index, std::int64_t vocab_size, std::span<std::int32_t> out) const;

 private:
  struct Start {
    std::uint32_t place;  // in documents_
    std::uint32_t skip;   // tokens of that document
  };
  std::uint64_t tokens_at(std::uint64_t place) const;

  const DocumentTable& table_;
  std::vector<std::uint32_t> documents_;
  std::vector<Start> starts_;
};

/// How many samples are taken of each dataset in an epoch: all of those with the largest weight,
/// and of the others by theirs. Without weights all of all. Of an empty one none.
std::vector<std::uint64_t> scaling_shares(std::span<const std::uint64_t> sizes,
                                          std::span<const double> weights);

/// The dataset of each sample of an epoch: always the one of which the smallest part is taken, of
/// equal ones the first, until all shares are used up.
std::vector<std::uint16_t> scaling_blend(std::span<const std::uint64_t> shares);

struct ScalingOptions {
  std::vector<std::string> prefixes{};
  std::vector<double> weights{};  // one per prefix, or none
  std::int64_t sequence_length = 256;
  std::int64_t vocab_size = 256;
  std::uint64_t seed = 42;
  /// Samples that all ranks take together in a micro-step: an epoch is a whole number of these.
  std::uint64_t group = 1;
};

/// All epochs: epoch e is packed and blended with seed + e. Not thread-safe.
class ScalingOrder {
 public:
  static Result<std::unique_ptr<ScalingOrder>> open(ScalingOptions options);
  ScalingOrder(const ScalingOrder&) = delete;  // tables point into the object

  /// As the first epoch has them; all epochs are taken to be as long, as Scaling does. Where a
  /// later one is packed into fewer, its first samples come again (Scaling fails there).
  std::uint64_t samples_per_epoch() const { return per_epoch_; }
  Result<> read_sample(std::uint64_t sample, std::span<std::int32_t> out);
  /// Equal on ranks that see equal files.
  std::string fingerprint() const;

 private:
  struct Source {
    std::vector<TokenFile> files;  // one
    DocumentTable table;
    explicit Source(TokenFile file);
  };
  struct Epoch {
    std::uint64_t number;
    std::vector<ScalingPacking> packed;  // per source
    std::vector<std::uint16_t> picks;    // empty with one source
    std::vector<std::uint64_t> before;   // samples of each source before every kStride-th pick
    std::uint64_t size() const { return picks.empty() ? packed[0].size() : picks.size(); }
  };
  explicit ScalingOrder(ScalingOptions options) : options_(std::move(options)) {}
  const Epoch& epoch(std::uint64_t number);

  static constexpr std::uint64_t kStride = 256;

  ScalingOptions options_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::uint64_t per_epoch_ = 0;
  std::list<Epoch> epochs_;  // most recent first; a step can touch two
};

}  // namespace sortie::trainer
