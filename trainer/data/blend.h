// Blend: picks from which of several datasets the next sample comes, by weights.
#pragma once

#include <cstdint>
#include <vector>

namespace sortie::trainer {

/// The algorithm of Megatron's BlendedDataset: each sample comes from the dataset that is furthest
/// below its share; ties go to the first dataset. It uses no random numbers. Every prefix of the
/// sequence follows the shares closely, and a pick does not depend on the total number of samples.
class Blend {
 public:
  struct Pick {
    std::size_t dataset;
    std::uint64_t sample;  // within that dataset, from 0
  };

  /// `weights` must be positive and need not sum to 1. There must be fewer than 2^16.
  explicit Blend(std::vector<double> weights);

  /// Returns pick number `index`. Computes and stores the missing picks up to it.
  Pick at(std::uint64_t index);

  /// Number of samples that Megatron builds for a dataset with this share of `samples`: 0.5 % more
  /// than are picked.
  static std::uint64_t samples_of_share(double share, std::uint64_t samples);

 private:
  void pick_next();

  std::vector<double> shares_;
  std::vector<std::uint16_t> picks_;
  std::vector<std::uint64_t> taken_;   // per dataset: samples in picks_
  std::vector<std::uint64_t> starts_;  // per dataset: samples before each kStride-th pick
  static constexpr std::uint64_t kStride = 256;
};

}  // namespace sortie::trainer
