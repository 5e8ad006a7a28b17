#include "trainer/loop/pace.h"

#include <algorithm>
#include <cmath>

namespace sortie::trainer {
namespace {

constexpr double kWindowSeconds = 30.0;
constexpr double kMostForgotten = 0.9;  // least weight kept: if steps are long, about ten count

/// Smoothed duration of rare events: the newest has half of the weight.
double mixed(double mean, double seconds) {
  return mean == 0.0 ? seconds : (mean + seconds) / 2;
}

/// Number of times that something is due after `step`, up to and including `steps`.
std::int64_t times_due(std::int64_t interval, std::int64_t step, std::int64_t steps) {
  if (step >= steps) return 0;
  if (interval <= 0) return 1;
  return steps / interval - step / interval + (steps % interval != 0 ? 1 : 0);
}

}  // namespace

void Pace::step(double seconds) {
  ++counted_;
  if (counted_ == 2) seconds_ = steps_ = 0.0;
  const double kept = std::max(std::exp(-seconds / kWindowSeconds), kMostForgotten);
  seconds_ = seconds_ * kept + seconds;
  steps_ = steps_ * kept + 1.0;
}

void Pace::validation(double seconds) {
  validation_ = mixed(validation_, seconds);
}

void Pace::save(double seconds) {
  save_ = mixed(save_, seconds);
}

double Pace::whole_step_seconds() const {
  double seconds = step_seconds();
  if (intervals_.validates && intervals_.validation > 0)
    seconds += validation_ / static_cast<double>(intervals_.validation);
  if (intervals_.saves && intervals_.save > 0)
    seconds += save_ / static_cast<double>(intervals_.save);
  return seconds;
}

double Pace::remaining(std::int64_t step, std::int64_t steps) const {
  const auto times = [](double seconds, std::int64_t count) {
    return seconds * static_cast<double>(count);
  };
  double seconds = times(step_seconds(), std::max<std::int64_t>(0, steps - step));
  if (intervals_.validates)
    seconds += times(validation_, times_due(intervals_.validation, step, steps));
  if (intervals_.saves) seconds += times(save_, times_due(intervals_.save, step, steps));
  return seconds;
}

}  // namespace sortie::trainer
