#include "trainer/planning/memory_use.h"

#include <algorithm>

#include "trainer/metrics/memory.h"

namespace sortie::trainer {

MemoryUse tensor_memory(const ParameterStore& store, const Allocator& allocator) {
  const auto signed_of = [](std::size_t bytes) { return static_cast<std::int64_t>(bytes); };
  const std::int64_t f32 = sizeof(float);
  MemoryUse use;
  use.weights = store.flat_elements() * f32;
  if (store.compute_dtype() == DType::bf16)
    use.weights += store.flat_elements() * signed_of(sizeof(bf16));
  use.gradients = store.trained_elements() * f32;
  use.optimizer = 2 * use.gradients;
  for (const auto& parameter : store.parameters())
    use.packed += signed_of(parameter->packed_bytes());
  const std::int64_t peak = signed_of(allocator.peak_bytes_in_use());
  use.activations = peak - signed_of(allocator.bytes_in_use());
  use.cached = signed_of(allocator.bytes_reserved()) - peak;
  return use;
}

MemoryUse measure_memory(const ParameterStore& store, const Allocator& allocator,
                         std::uint64_t snapshot, std::uint64_t memory_checkpoints) {
  MemoryUse use = tensor_memory(store, allocator);
  use.snapshot = static_cast<std::int64_t>(snapshot);
  use.memory_checkpoints = static_cast<std::int64_t>(memory_checkpoints);
  use.process = std::max<std::int64_t>(0, peak_memory_bytes() - use.total());
  return use;
}

}  // namespace sortie::trainer
