// OutlierDetector: whether a value stands out of those before it, like the loss of a broken batch.
#pragma once

#include <cstdint>

namespace sortie::trainer {

/// What it has seen; a part of a checkpoint.
struct OutlierState {
  double mean = 0.0, variance = 0.0;
  std::int64_t count = 0;
  bool operator==(const OutlierState&) const = default;
};

/// Running mean and variance with a memory of about `window` values, exponentially weighted
/// (Welford 1962; West 1979).
class OutlierDetector {
 public:
  /// `limit` deviations above the mean are an outlier; 0 = nothing is.
  OutlierDetector(double limit, std::int64_t window) : limit_(limit), window_(window) {}

  /// False until the window is full. NaN is none: that is another check's business.
  bool stands_out(double value) const;
  /// Deviations above the mean.
  double deviations(double value) const;
  /// Takes a value in; an outlier counts as the largest value that is none, so that a level that
  /// has changed for good is learned.
  void add(double value);

  const OutlierState& state() const { return state_; }
  void set_state(const OutlierState& state) { state_ = state; }

 private:
  double limit_;
  std::int64_t window_;
  OutlierState state_;
};

}  // namespace sortie::trainer
