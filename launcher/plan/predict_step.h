// How long a step of a layout would take.
#pragma once

#include "launcher/plan/suggest.h"

namespace sortie::launcher {

/// Seconds of a step: operations of a token times tokens over ranks and flop_s_of() (4 / 3 of them
/// where layers are recomputed), over 1 - bubble of a pipeline; the update of a rank's parameters;
/// what tensor groups and stages send; and what replicas send: what it costs ranks that compute,
/// and as far as it takes longer than the passes that it goes on beside. Times of links are bytes
/// over rates, no latencies.
Suggestion predict_step(const config::JobConfig& job, const LaunchPlan& plan, std::size_t use,
                        const MeasuredRates& rates);

/// Bytes of a rank's GPU; 0 of one that computes on none.
std::int64_t memory_on_gpu(const training::ModelCost::Memory& memory);

}  // namespace sortie::launcher
