#include "trainer/loop/memory_report.h"

#include <algorithm>

#include "trainer/metrics/memory.h"

namespace sortie::trainer {

model::MemoryUse measure_memory(const ParameterStore& store, const Allocator& allocator,
                                std::uint64_t snapshot) {
  const auto signed_of = [](std::size_t bytes) { return static_cast<std::int64_t>(bytes); };
  const std::int64_t f32 = sizeof(float);
  model::MemoryUse use;
  use.weights = store.flat_elements() * f32;
  if (store.compute_dtype() == DType::bf16)
    use.weights += store.flat_elements() * signed_of(sizeof(bf16));
  use.gradients = store.trained_elements() * f32;
  use.optimizer = 2 * use.gradients;
  use.snapshot = static_cast<std::int64_t>(snapshot);
  for (const auto& parameter : store.parameters())
    use.packed += signed_of(parameter->packed_bytes());
  const std::int64_t peak = signed_of(allocator.peak_bytes_in_use());
  use.activations = peak - signed_of(allocator.bytes_in_use());
  use.cached = signed_of(allocator.bytes_reserved()) - peak;
  use.process = std::max<std::int64_t>(0, peak_memory_bytes() - use.total());
  return use;
}

Result<model::MemoryUse> plan_memory(const config::JobConfig& job, std::int64_t micro_batch_size,
                                     std::int64_t world_size, DType dtype, int threads,
                                     const CpuFacts& cpu) {
  return model::plan_memory(job, micro_batch_size, world_size,
                            {.element = static_cast<std::int64_t>(dtype_bytes(dtype)),
                             .threads = threads,
                             .packs_for_avx512 = cpu.isa.starts_with("avx512")});
}

}  // namespace sortie::trainer
