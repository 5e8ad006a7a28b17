#include "trainer/outer/outer_state.h"

#include <xxhash.h>

#include <algorithm>

#include "common/base/check.h"

namespace sortie::trainer::outer {

std::int64_t elements_of(const std::vector<PartRange>& ranges) {
  std::int64_t sum = 0;
  for (const PartRange& range : ranges) sum += range.elements();
  return sum;
}

void take_ranges(std::span<const float> vector, const std::vector<PartRange>& ranges,
                 std::span<float> values) {
  auto to = values.begin();
  for (const PartRange& range : ranges)
    to = std::copy(vector.begin() + range.begin, vector.begin() + range.end, to);
  SORTIE_CHECK(to == values.end(), "ranges of {} elements into {}", elements_of(ranges),
               values.size());
}

void put_ranges(std::span<const float> values, const std::vector<PartRange>& ranges,
                std::span<float> vector) {
  auto from = values.begin();
  for (const PartRange& range : ranges) {
    std::copy_n(from, range.elements(), vector.begin() + range.begin);
    from += range.elements();
  }
  SORTIE_CHECK(from == values.end(), "{} elements into ranges of {}", values.size(),
               elements_of(ranges));
}

namespace {

/// The outer step of one element.
struct OuterStep {
  explicit OuterStep(const config::OuterSettings& settings)
      : rate(static_cast<float>(settings.learning_rate)),
        decay(static_cast<float>(settings.momentum)),
        nesterov(settings.nesterov) {}
  float momentum_after(float momentum, float change) const { return decay * momentum + change; }
  float weight_after(float weight, float momentum, float change) const {
    return weight - rate * (nesterov ? change + decay * momentum : momentum);
  }
  float rate, decay;
  bool nesterov;
};

}  // namespace

void OuterState::apply(const config::OuterSettings& settings, const std::vector<PartRange>& ranges,
                       std::span<const float> mean) {
  SORTIE_CHECK(elements_of(ranges) == static_cast<std::int64_t>(mean.size()),
               "a mean of {} elements", mean.size());
  const OuterStep step(settings);
  const float* change = mean.data();
  for (const PartRange& range : ranges) {
    for (std::int64_t i = range.begin; i < range.end; ++i, ++change) {
      float& theta = weights[static_cast<std::size_t>(i)];
      float& v = momentum[static_cast<std::size_t>(i)];
      v = step.momentum_after(v, *change);
      theta = step.weight_after(theta, v, *change);
    }
  }
}

void OuterState::weights_after(const config::OuterSettings& settings,
                               const std::vector<PartRange>& ranges, std::span<const float> mean,
                               std::span<float> after) const {
  SORTIE_CHECK(mean.size() == after.size(), "a mean of {} elements, {} weights", mean.size(),
               after.size());
  const OuterStep step(settings);
  std::size_t at = 0;
  for (const PartRange& range : ranges) {
    for (std::int64_t i = range.begin; i < range.end; ++i, ++at) {
      const auto element = static_cast<std::size_t>(i);
      const float v = step.momentum_after(momentum[element], mean[at]);
      after[at] = step.weight_after(weights[element], v, mean[at]);
    }
  }
}

std::uint64_t OuterState::hash() const {
  const std::uint64_t first = XXH3_64bits(weights.data(), weights.size() * sizeof(float));
  return XXH3_64bits_withSeed(momentum.data(), momentum.size() * sizeof(float), first);
}

}  // namespace sortie::trainer::outer
