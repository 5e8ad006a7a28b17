// Learning rate as a pure function of the step.
#pragma once

#include <cstdint>

#include "common/config/schema.h"

namespace sortie::trainer {

/// `step` counts from 1. Linear warm-up to the peak over the warm-up steps, then to the minimum at
/// decay_iters by the chosen style, then the minimum. Cosine: min + (peak - min) (1 + cos(pi r)) /
/// 2 (Loshchilov & Hutter 2017). warmup-stable-decay holds the peak until the last wsd_decay_steps
/// (Hu et al. 2024). `train_iterations` stands in for decay_iters = 0.
double learning_rate_at(const config::LearningRateSchedulerConfig& config,
                        std::int64_t train_iterations, std::int64_t step);

}  // namespace sortie::trainer
