#include "trainer/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>

#include "trainer/random/portable_math.h"

namespace sortie::trainer {
namespace {

/// Remaining fraction of the distance from the peak to the minimum after fraction r of the decay: 1
/// to 0.
double share_left(std::string_view style, double r) {
  if (style == "linear") return 1.0 - r;
  if (style == "minus-sqrt") return 1.0 - std::sqrt(r);
  if (style == "exponential") return 2.0 * portable_exp2(-r) - 1.0;
  return 0.5 * (1.0 + portable_cos_of_turns(0.5 * r));
}

}  // namespace

double learning_rate_at(const config::LearningRateSchedulerConfig& config,
                        std::int64_t train_iterations, std::int64_t step) {
  const double peak = config.learning_rate, floor = config.learning_rate_minimum;
  const std::int64_t warmup = config.learning_rate_warmup_steps;
  const std::int64_t end =
      config.learning_rate_decay_iters ? config.learning_rate_decay_iters : train_iterations;
  if (step <= warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  std::string_view style = config.learning_rate_decay_style;
  if (style == "constant") return peak;
  if (step >= end) return floor;
  std::int64_t begin = warmup;
  if (style == "warmup-stable-decay") {
    const std::int64_t steps =
        config.wsd_decay_steps ? config.wsd_decay_steps : std::max<std::int64_t>(end / 10, 1);
    begin = std::max(warmup, end - steps);
    style = config.wsd_decay_style;
    if (step <= begin) return peak;
  }
  const double ratio = static_cast<double>(step - begin) / static_cast<double>(end - begin);
  return floor + (peak - floor) * share_left(style, ratio);
}

}  // namespace sortie::trainer
