// Kernels that cast matrices to FP8. Each launcher goes to the stream and returns at once.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"
#include "trainer/ops/fp8_format.h"

namespace sortie::trainer::ops::cuda {

/// parts [count]: the largest finite |x| of each part of the rows, 0 where there is none; count is
/// fp8_parts(x.rows).
void find_largest(cudaStream_t stream, Rows<const bf16> x, float* parts, std::int64_t count);

/// What a cast writes. Rows and columns of x are multiples of kFp8Unit, copies 16-byte aligned.
struct Fp8Copy {
  std::uint8_t* rows = nullptr;     // [x.rows, x.cols]; null: not wanted
  std::uint8_t* columns = nullptr;  // [x.cols, x.rows]; the same
  float* inverse_scale = nullptr;
};

/// Casts by the scale that the largest of `parts` asks for; both copies in one pass over x.
void cast_to_fp8(cudaStream_t stream, Rows<const bf16> x, const float* parts, std::int64_t count,
                 Fp8Format format, const Fp8Copy& to);

}  // namespace sortie::trainer::ops::cuda
