#include "trainer/planning/memory_use.h"

#include <algorithm>

#include "trainer/metrics/memory.h"
#include "trainer/ops/cuda/work_sizes.h"
#include "trainer/ops/meta/planned_gpu.h"
#include "trainer/tensor/device_memory.h"

namespace sortie::trainer {

MemoryUse tensor_memory(const ParameterStore& store, const Allocator& allocator) {
  const auto signed_of = [](std::size_t bytes) { return static_cast<std::int64_t>(bytes); };
  const auto bytes_of = [&](const Tensor& buffer) {
    return buffer.defined() ? buffer.elements() * signed_of(dtype_bytes(buffer.dtype())) : 0;
  };
  MemoryUse use;
  use.weights =
      bytes_of(store.master()) + bytes_of(store.compute_copy()) + store.room_value_bytes();
  use.gradients = bytes_of(store.gradients()) + store.room_gradient_bytes();
  use.optimizer = bytes_of(store.moment1()) + bytes_of(store.moment2());
  for (const auto& parameter : store.parameters())
    use.packed += signed_of(parameter->packed_bytes());
  const std::int64_t peak = signed_of(allocator.peak_bytes_in_use());
  use.activations = peak - signed_of(allocator.bytes_in_use());
  use.cached = signed_of(allocator.bytes_reserved()) - peak;
  if (!ops::is_gpu(allocator.device())) return use;
  // The workspace is kept between steps, like parameters. A block takes GPU memory as a whole,
  // whereas its unused pages in host memory cost nothing.
  use.activations += signed_of(ops::cuda::kProductWorkspaceBytes);
  use.cached = signed_of(allocator.bytes_reserved()) - use.tensors();
  return use;
}

MemoryUse measure_memory(const ParameterStore& store, const Allocator& allocator,
                         std::uint64_t snapshot, std::uint64_t memory_checkpoints) {
  MemoryUse use = tensor_memory(store, allocator);
  use.snapshot = static_cast<std::int64_t>(snapshot);
  use.memory_checkpoints = static_cast<std::int64_t>(memory_checkpoints);
  // GPU tensors are not in this process's memory.
  const std::int64_t on_host =
      memory_is_apart(allocator.device()) ? use.snapshot + use.memory_checkpoints : use.total();
  use.process = std::max<std::int64_t>(0, peak_memory_bytes() - on_host);
  return use;
}

}  // namespace sortie::trainer
