// Learning rate as a pure function of the step.
#pragma once

#include <cstdint>

#include "common/config/schema.h"

namespace sortie::trainer {

/// Returns the learning rate of `step`, which counts from 1: linear warm-up to the peak over the
/// warm-up steps, then a decay to the minimum at decay_iters in the chosen style, then the minimum.
/// Cosine: min + (peak - min) (1 + cos(pi r)) / 2 (Loshchilov & Hutter 2017). warmup-stable-decay
/// holds the peak until the last wsd_decay_steps (Hu et al. 2024). constant keeps the peak.
/// decay_iters = 0 means `train_iterations`.
double learning_rate_at(const config::LearningRateSchedulerConfig& config,
                        std::int64_t train_iterations, std::int64_t step);

}  // namespace sortie::trainer
