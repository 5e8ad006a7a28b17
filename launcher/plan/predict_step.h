// Predicts the duration of a step of a layout.
#pragma once

#include "launcher/plan/suggest.h"

namespace sortie::launcher {

/// Predicts the seconds of a step, as the sum of:
/// - the passes: operations per token times tokens over ranks and flop_s_of() (times 4 / 3 if
///   layers are recomputed), divided by 1 - bubble of a pipeline
/// - the update of the parameters of a rank
/// - the traffic of tensor groups and stages
/// - the traffic between replicas: what it costs ranks while they compute, and the part of its time
///   that exceeds the passes that it overlaps
///
/// Times of links are bytes over rates, without latencies. `use`: index of the precision in
/// ModelCost::memory.
Suggestion predict_step(const config::JobConfig& job, const LaunchPlan& plan, std::size_t use,
                        const MeasuredRates& rates);

/// Bytes on the GPU of a rank; 0 for a rank without GPU.
std::int64_t memory_on_gpu(const training::ModelCost::Memory& memory);

}  // namespace sortie::launcher
