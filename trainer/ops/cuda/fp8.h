// Kernels that cast matrices to FP8. Each launcher goes to the stream and returns at once.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"
#include "trainer/ops/fp8_format.h"

namespace sortie::trainer::ops::cuda {

/// What the scale of a cast comes from: the largest number of a history [kFp8History], where there
/// is one above 0, else that of `parts` [count].
struct Fp8Largest {
  const float* history = nullptr;  // null: none
  float* parts = nullptr;
  int count = 0;
};

/// largest.parts: the largest finite |x| of each part of the rows, 0 where there is none; count is
/// fp8_parts(x.rows). Nothing happens where the history has a number.
void find_largest(cudaStream_t stream, Rows<const bf16> x, const Fp8Largest& largest);

/// What a cast writes. Rows and columns of x are multiples of kFp8Unit, copies 16-byte aligned.
struct Fp8Copy {
  std::uint8_t* rows = nullptr;     // [x.rows, x.cols]; null: not wanted
  std::uint8_t* columns = nullptr;  // [x.cols, x.rows]; the same
  float* inverse_scale = nullptr;
  float* tiles = nullptr;  // [fp8_tiles(x.rows, x.cols)]: the largest finite |x| of each; the same
};

/// Casts by the scale that `largest` asks for; both copies in one pass over x.
void cast_to_fp8(cudaStream_t stream, Rows<const bf16> x, const Fp8Largest& largest,
                 Fp8Format format, const Fp8Copy& to);

/// current [1] becomes the larger of it and all of `tiles`.
void note_largest(cudaStream_t stream, Flat<const float> tiles, float* current);

/// As ops::roll_fp8_history; current.size rows.
void roll_histories(cudaStream_t stream, float* history, Flat<float> current);

}  // namespace sortie::trainer::ops::cuda
