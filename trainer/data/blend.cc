#include "trainer/data/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace sortie::trainer {

Blend::Blend(std::vector<double> weights) : shares_(std::move(weights)), taken_(shares_.size()) {
  const double sum = std::accumulate(shares_.begin(), shares_.end(), 0.0);
  for (double& share : shares_) share /= sum;
}

void Blend::pick_next() {
  const std::uint64_t i = picks_.size();
  if (i % kStride == 0) starts_.insert(starts_.end(), taken_.begin(), taken_.end());
  const auto number = static_cast<double>(std::max<std::uint64_t>(i, 1));
  std::size_t best = 0;
  double furthest = 0;
  for (std::size_t d = 0; d < shares_.size(); ++d) {
    const double behind = shares_[d] * number - static_cast<double>(taken_[d]);
    if (d > 0 && behind <= furthest) continue;
    best = d;
    furthest = behind;
  }
  picks_.push_back(static_cast<std::uint16_t>(best));
  ++taken_[best];
}

Blend::Pick Blend::at(std::uint64_t index) {
  while (picks_.size() <= index) pick_next();
  const std::uint64_t block = index / kStride;
  const std::size_t dataset = picks_[index];
  std::uint64_t sample = starts_[block * shares_.size() + dataset];
  for (std::uint64_t i = block * kStride; i < index; ++i) sample += picks_[i] == dataset ? 1 : 0;
  return {dataset, sample};
}

std::uint64_t Blend::samples_of_share(double share, std::uint64_t samples) {
  return static_cast<std::uint64_t>(
      std::ceil(std::ceil(static_cast<double>(samples) * share) * 1.005));
}

}  // namespace sortie::trainer
