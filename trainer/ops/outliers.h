// Detects values that stand out from those before them, such as the loss of a broken batch. Uses a
// running mean and variance with a memory of about `window` values, exponentially weighted (Welford
// 1962; West 1979). Host and kernels compute the same.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/base/host_device.h"

namespace sortie::trainer {

/// Statistics of the values so far; part of a checkpoint.
struct OutlierState {
  double mean = 0.0, variance = 0.0;
  std::int64_t count = 0;
  bool operator==(const OutlierState&) const = default;
};

/// A value more than `limit` deviations above the mean is an outlier; 0 = no value is.
struct OutlierLimit {
  double limit = 0.0;
  std::int64_t window = 1;
};

/// Deviations above the mean.
SORTIE_HOST_DEVICE inline double deviations(const OutlierState& seen, double value) {
  // Equal values have no deviation; one millionth of the mean is used instead.
  double deviation = std::sqrt(seen.variance);
  const double least = 1e-6 * std::fabs(seen.mean);
  if (deviation < least) deviation = least;
  if (deviation < 1e-30) deviation = 1e-30;
  return (value - seen.mean) / deviation;
}

/// False until the window is full. False for NaN, which another check detects.
SORTIE_HOST_DEVICE inline bool stands_out(const OutlierState& seen, const OutlierLimit& limit,
                                          double value) {
  return limit.limit > 0 && seen.count >= limit.window && deviations(seen, value) > limit.limit;
}

/// Adds a value to the statistics. An outlier counts as the largest value that is not one, so that
/// a lasting change of level is learned. Values that are not finite are ignored.
SORTIE_HOST_DEVICE inline void add_value(OutlierState& seen, const OutlierLimit& limit,
                                         double value) {
  if (!std::isfinite(value)) return;
  if (stands_out(seen, limit, value)) {
    const double far = deviations(seen, value);
    value -= (far - limit.limit) * (value - seen.mean) / far;
  }
  ++seen.count;
  const double weight =  // plain mean until the window is full
      1.0 / static_cast<double>(seen.count < limit.window ? seen.count : limit.window);
  const double delta = value - seen.mean;
  seen.mean += weight * delta;
  seen.variance = (1.0 - weight) * (seen.variance + weight * delta * delta);
}

}  // namespace sortie::trainer
