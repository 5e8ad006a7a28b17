// Whether a value stands out of those before it, like the loss of a broken batch: by a running mean
// and variance with a memory of about `window` values, exponentially weighted (Welford 1962; West
// 1979). Host and kernels compute it alike.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/base/host_device.h"

namespace sortie::trainer {

/// What has been seen; a part of a checkpoint.
struct OutlierState {
  double mean = 0.0, variance = 0.0;
  std::int64_t count = 0;
  bool operator==(const OutlierState&) const = default;
};

/// `limit` deviations above the mean are an outlier; 0 = nothing is.
struct OutlierLimit {
  double limit = 0.0;
  std::int64_t window = 1;
};

/// Deviations above the mean.
SORTIE_HOST_DEVICE inline double deviations(const OutlierState& seen, double value) {
  // Values that were all alike have no deviation: one part in a million of the mean stands for it.
  double deviation = std::sqrt(seen.variance);
  const double least = 1e-6 * std::fabs(seen.mean);
  if (deviation < least) deviation = least;
  if (deviation < 1e-30) deviation = 1e-30;
  return (value - seen.mean) / deviation;
}

/// False until the window is full. NaN is none: that is another check's business.
SORTIE_HOST_DEVICE inline bool stands_out(const OutlierState& seen, const OutlierLimit& limit,
                                          double value) {
  return limit.limit > 0 && seen.count >= limit.window && deviations(seen, value) > limit.limit;
}

/// Takes a value in; an outlier counts as the largest value that is none, so that a level that has
/// changed for good is learned. What is not finite is left out.
SORTIE_HOST_DEVICE inline void add_value(OutlierState& seen, const OutlierLimit& limit,
                                         double value) {
  if (!std::isfinite(value)) return;
  if (stands_out(seen, limit, value)) {
    const double far = deviations(seen, value);
    value -= (far - limit.limit) * (value - seen.mean) / far;
  }
  ++seen.count;
  const double weight =  // plain mean while it fills
      1.0 / static_cast<double>(seen.count < limit.window ? seen.count : limit.window);
  const double delta = value - seen.mean;
  seen.mean += weight * delta;
  seen.variance = (1.0 - weight) * (seen.variance + weight * delta * delta);
}

}  // namespace sortie::trainer
