// Tensors of pseudo-random values for the benchmarks of ops.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "trainer/ops/copy.h"

namespace sortie::bench {

/// Returns values in [-0.5, 0.5), f32 or bf16, from a linear congruential generator with state
/// `seed`.
inline trainer::Tensor filled(trainer::ExecutionContext& context, trainer::DType dtype,
                              const trainer::Shape& shape, std::uint32_t seed) {
  trainer::Tensor tensor = context.empty(dtype, shape);
  const std::size_t size = trainer::dtype_bytes(dtype);
  std::vector<std::byte> bytes(static_cast<std::size_t>(shape.elements()) * size);
  for (std::size_t at = 0; at < bytes.size(); at += size) {
    seed = seed * 1664525u + 1013904223u;
    const float value = static_cast<float>(seed >> 8) * 0x1p-24f - 0.5f;
    const trainer::bf16 narrow(value);
    std::memcpy(&bytes[at],
                dtype == trainer::DType::bf16 ? static_cast<const void*>(&narrow) : &value, size);
  }
  trainer::ops::copy_bytes_from_host(context, bytes, tensor);
  return tensor;
}

}  // namespace sortie::bench
