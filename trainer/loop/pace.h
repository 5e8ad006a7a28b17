// Pace: how fast training goes, and how long it will take: steps, validations and saves, smoothed.
#pragma once

#include <cstdint>

namespace sortie::trainer {

class Pace {
 public:
  /// Steps between validations and between saves; 0 = none but after the last step.
  struct Intervals {
    std::int64_t validation = 0, save = 0;
    bool validates = false, saves = false;  // whether there are any at all
  };
  explicit Pace(Intervals intervals) : intervals_(intervals) {}

  // What took how many seconds.
  void step(double seconds);
  void validation(double seconds);
  void save(double seconds);

  /// Mean seconds of a step alone, over about the last half minute or the last ten steps. The first
  /// step, which makes buffers and kernels, counts only while it is the only one. 0 before it.
  double step_seconds() const { return steps_ > 0 ? seconds_ / steps_ : 0.0; }
  /// The same with its share of validations and saves.
  double whole_step_seconds() const;
  /// Seconds from after `step` to the end of `steps`, with the validations and saves that are due.
  double remaining(std::int64_t step, std::int64_t steps) const;

 private:
  Intervals intervals_;
  double seconds_ = 0.0, steps_ = 0.0;  // of late: older ones count less and less
  double validation_ = 0.0, save_ = 0.0;
  std::int64_t counted_ = 0;
};

}  // namespace sortie::trainer
