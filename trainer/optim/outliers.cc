#include "trainer/optim/outliers.h"

#include <algorithm>
#include <cmath>

namespace sortie::trainer {

double OutlierDetector::deviations(double value) const {
  // Values that were all alike have no deviation: one part in a million of the mean stands for it.
  const double deviation =
      std::max({std::sqrt(state_.variance), 1e-6 * std::abs(state_.mean), 1e-30});
  return (value - state_.mean) / deviation;
}

bool OutlierDetector::stands_out(double value) const {
  return limit_ > 0 && state_.count >= window_ && deviations(value) > limit_;
}

void OutlierDetector::add(double value) {
  if (!std::isfinite(value)) return;
  if (stands_out(value))
    value -= (deviations(value) - limit_) * (value - state_.mean) / deviations(value);
  ++state_.count;
  const double weight =
      1.0 / static_cast<double>(std::min(state_.count, window_));  // plain mean while it fills
  const double delta = value - state_.mean;
  state_.mean += weight * delta;
  state_.variance = (1.0 - weight) * (state_.variance + weight * delta * delta);
}

}  // namespace sortie::trainer
