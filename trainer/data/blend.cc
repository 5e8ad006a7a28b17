#include "trainer/data/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sortie::trainer {

Blend::Blend(std::span<const double> weights, std::uint64_t samples) : datasets_(weights.size()) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::uint64_t> taken(datasets_);
  picks_.reserve(samples);
  for (std::uint64_t i = 0; i < samples; ++i) {
    if (i % kStride == 0) taken_.insert(taken_.end(), taken.begin(), taken.end());
    const auto number = static_cast<double>(std::max<std::uint64_t>(i, 1));
    std::size_t best = 0;
    double furthest = 0;
    for (std::size_t d = 0; d < datasets_; ++d) {
      const double behind = weights[d] / sum * number - static_cast<double>(taken[d]);
      if (d > 0 && behind <= furthest) continue;
      best = d;
      furthest = behind;
    }
    picks_.push_back(static_cast<std::uint16_t>(best));
    ++taken[best];
  }
}

Blend::Pick Blend::at(std::uint64_t index) const {
  index %= picks_.size();
  const std::uint64_t block = index / kStride;
  const std::size_t dataset = picks_[index];
  std::uint64_t sample = taken_[block * datasets_ + dataset];
  for (std::uint64_t i = block * kStride; i < index; ++i) sample += picks_[i] == dataset ? 1 : 0;
  return {dataset, sample};
}

std::uint64_t Blend::samples_of_share(double share, std::uint64_t samples) {
  return static_cast<std::uint64_t>(
      std::ceil(std::ceil(static_cast<double>(samples) * share) * 1.005));
}

}  // namespace sortie::trainer
