// Tensors of pseudo-random values for the benches of ops.
#pragma once

#include "trainer/tensor/context.h"

namespace sortie::bench {

/// Values in [-0.5, 0.5), f32 or bf16; `seed` as the state of a linear congruential generator.
inline trainer::Tensor filled(trainer::ExecutionContext& context, trainer::DType dtype,
                              const trainer::Shape& shape, std::uint32_t seed) {
  trainer::Tensor tensor = context.empty(dtype, shape);
  for (std::int64_t i = 0; i < shape.elements(); ++i) {
    seed = seed * 1664525u + 1013904223u;
    const float value = static_cast<float>(seed >> 8) * 0x1p-24f - 0.5f;
    if (dtype == trainer::DType::bf16)
      tensor.data<trainer::bf16>()[i] = trainer::bf16(value);
    else
      tensor.data<float>()[i] = value;
  }
  return tensor;
}

}  // namespace sortie::bench
