// What a rank's memory is for, measured in the terms of its plan.
#pragma once

#include "common/model/memory.h"
#include "trainer/nn/parameter.h"

namespace sortie::trainer {

/// Between steps: what lives then is parameters and what belongs to them, and the highest that
/// was in use beyond it are activations. The total is the process's highest resident size.
/// `snapshot`: bytes that background saves hold.
model::MemoryUse measure_memory(const ParameterStore& store, const Allocator& allocator,
                                std::uint64_t snapshot = 0);

/// The same from the config, for this CPU.
Result<model::MemoryUse> plan_memory(const config::JobConfig& job, std::int64_t micro_batch_size,
                                     std::int64_t world_size, DType dtype, int threads,
                                     const CpuFacts& cpu);

}  // namespace sortie::trainer
