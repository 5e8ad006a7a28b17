// StepOrder: determines a step from outside if several sites train one model.
#pragma once

#include <cstdint>
#include <functional>

#include "common/base/result.h"

namespace sortie::trainer {

struct StepOrder {
  std::int64_t step = 0;          // of the schedule, counts from 1
  std::int64_t first_sample = 0;  // in the data's order
  std::int64_t end_sample = 0;    // of the site's samples: limit for reading ahead
  double rate = 1.0;              // factor of that step's learning rate
  /// For a step that all sites take together: replaces the gradients in the store, which are the
  /// final sums of this site, by those of all sites, and returns the mean loss over the sites. Gets
  /// this site's mean loss and number of targets. Collective. Empty: the step is the site's alone.
  std::function<Result<double>(double loss, std::int64_t targets)> sum_over_sites{};
};

}  // namespace sortie::trainer
