// Blend: which sample of which of several datasets is the next, by weights.
#pragma once

#include <cstdint>
#include <vector>

namespace sortie::trainer {

/// As Megatron's BlendedDataset: each next sample is of the dataset that is furthest behind its
/// share; of equal ones the first. Nothing random: shares are exact at every moment, and a pick
/// does not depend on how many are taken.
class Blend {
 public:
  struct Pick {
    std::size_t dataset;
    std::uint64_t sample;  // of that dataset, from 0
  };

  /// `weights` are positive and need not add up to 1; fewer than 2^16 of them.
  explicit Blend(std::vector<double> weights);

  /// Computes the picks up to this one that are not known yet.
  Pick at(std::uint64_t index);

  /// How many samples Megatron builds of a dataset with this share, a little more than are taken.
  static std::uint64_t samples_of_share(double share, std::uint64_t samples);

 private:
  void pick_next();

  std::vector<double> shares_;
  std::vector<std::uint16_t> picks_;
  std::vector<std::uint64_t> taken_;   // per dataset, by all picks
  std::vector<std::uint64_t> starts_;  // per dataset, before each kStride-th pick
  static constexpr std::uint64_t kStride = 256;
};

}  // namespace sortie::trainer
