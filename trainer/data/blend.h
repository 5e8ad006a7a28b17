// Blend: which sample of which of several datasets is the next, by weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sortie::trainer {

/// As Megatron's BlendedDataset: each next sample is of the dataset that is furthest behind its
/// share; of equal ones the first. Nothing random: shares are exact at every moment.
class Blend {
 public:
  struct Pick {
    std::size_t dataset;
    std::uint64_t sample;  // of that dataset, from 0
  };

  /// `weights` are positive and need not add up to 1; fewer than 2^16 of them.
  Blend(std::span<const double> weights, std::uint64_t samples);

  std::uint64_t size() const { return picks_.size(); }
  Pick at(std::uint64_t index) const;

  /// How many samples Megatron builds of a dataset with this share, a little more than are taken.
  static std::uint64_t samples_of_share(double share, std::uint64_t samples);

 private:
  std::vector<std::uint16_t> picks_;
  std::vector<std::uint64_t> taken_;  // per dataset, before each kStride-th pick
  std::size_t datasets_;
  static constexpr std::uint64_t kStride = 256;
};

}  // namespace sortie::trainer
