// Sums and maxima over ranks, of buffers in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Whether `op` supports `dtype`: u8 supports only ReduceOp::max.
bool can_reduce(DType dtype, ReduceOp op);

/// out[i] = inputs[0][i] op inputs[1][i] op ..., in this order; bf16 in f32 with one rounding at
/// the end. `out` may be one of the inputs.
void reduce_in_order(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
                     std::byte* out, std::int64_t elements);

}  // namespace sortie::trainer
