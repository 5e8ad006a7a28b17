// StepOrder: what decides a step from outside, where several sites train one model.
#pragma once

#include <cstdint>
#include <functional>

#include "common/base/result.h"

namespace sortie::trainer {

struct StepOrder {
  std::int64_t step = 0;          // of the schedule, counts from 1
  std::int64_t first_sample = 0;  // in the data's order
  std::int64_t end_sample = 0;    // of the site's samples: nothing is read ahead beyond
  double rate = 1.0;              // of the learning rate of that step
  /// Of a step that all sites take together: makes the gradients in the store, final sums of this
  /// site, those of all sites, and returns the mean loss over them; given the same of this site
  /// and the number of its targets. Collective. Null: the step is the site's alone.
  std::function<Result<double>(double loss, std::int64_t targets)> sum_over_sites{};
};

}  // namespace sortie::trainer
