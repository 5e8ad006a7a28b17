// Pace: smoothed durations of steps, validations and saves, and the time that training will still
// take.
#pragma once

#include <cstdint>

namespace sortie::trainer {

class Pace {
 public:
  /// Steps between validations and between saves; 0 = only after the last step.
  struct Intervals {
    std::int64_t validation = 0, save = 0;
    bool validates = false, saves = false;  // whether there are any at all
  };
  explicit Pace(Intervals intervals) : intervals_(intervals) {}

  // Record a duration in seconds.
  void step(double seconds);
  void validation(double seconds);
  void save(double seconds);

  /// Mean seconds of a step, without validations and saves, over about the last half minute or the
  /// last ten steps, whichever is longer. The first step, which makes buffers and kernels, counts
  /// only while it is the only one. 0 before it.
  double step_seconds() const { return steps_ > 0 ? seconds_ / steps_ : 0.0; }
  /// The same, plus a step's share of validations and saves.
  double whole_step_seconds() const;
  /// Seconds from the end of `step` to the end of `steps`, with the validations and saves that are
  /// due.
  double remaining(std::int64_t step, std::int64_t steps) const;

 private:
  Intervals intervals_;
  double seconds_ = 0.0, steps_ = 0.0;  // sums, in which older steps count less
  double validation_ = 0.0, save_ = 0.0;
  std::int64_t counted_ = 0;
};

}  // namespace sortie::trainer
