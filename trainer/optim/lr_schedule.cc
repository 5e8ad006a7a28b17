#include "trainer/optim/lr_schedule.h"

#include <cmath>
#include <numbers>

namespace sortie::trainer {

double learning_rate_at(const config::LearningRateSchedulerConfig& config,
                        std::int64_t train_iterations, std::int64_t step) {
  const double peak = config.learning_rate, floor = config.learning_rate_minimum;
  const std::int64_t warmup = config.learning_rate_warmup_steps;
  const std::int64_t end =
      config.learning_rate_decay_iters ? config.learning_rate_decay_iters : train_iterations;
  if (step <= warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  if (config.learning_rate_decay_style == "constant") return peak;
  if (step >= end) return floor;
  const double ratio = static_cast<double>(step - warmup) / static_cast<double>(end - warmup);
  const double share = config.learning_rate_decay_style == "linear"
                           ? 1.0 - ratio
                           : 0.5 * (1.0 + std::cos(std::numbers::pi * ratio));
  return floor + (peak - floor) * share;
}

}  // namespace sortie::trainer
