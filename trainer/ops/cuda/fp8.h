// Kernels that cast matrices to FP8. Each launcher adds its kernels to the stream and returns at
// once.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"
#include "trainer/ops/fp8_format.h"

namespace sortie::trainer::ops::cuda {

/// What determines a cast's scale: the largest value of a history [kFp8History] if that is above 0,
/// else the largest of `parts` [count].
struct Fp8Largest {
  const float* history = nullptr;  // nullptr: none
  float* parts = nullptr;
  int count = 0;
};

/// Writes largest.parts: the largest finite |x| of each part of the rows, 0 if there is none; count
/// is fp8_parts(x.rows). No-op if the history has a value above 0.
void find_largest(cudaStream_t stream, Rows<const bf16> x, const Fp8Largest& largest);

/// What a cast writes. Rows and columns of x are multiples of kFp8Unit, copies 16-byte aligned.
struct Fp8Copy {
  std::uint8_t* rows = nullptr;     // [x.rows, x.cols]; nullptr: not requested
  std::uint8_t* columns = nullptr;  // [x.cols, x.rows]; nullptr: not requested
  float* inverse_scale = nullptr;
  float* tiles = nullptr;  // [fp8_tiles(x.rows, x.cols)]: largest finite |x| of each, or nullptr
};

/// Casts with the scale that `largest` determines; both copies in one pass over x.
void cast_to_fp8(cudaStream_t stream, Rows<const bf16> x, const Fp8Largest& largest,
                 Fp8Format format, const Fp8Copy& to);

/// current [1] = the largest of itself and `tiles`.
void note_largest(cudaStream_t stream, Flat<const float> tiles, float* current);

/// Like ops::roll_fp8_history(); current.size rows.
void roll_histories(cudaStream_t stream, float* history, Flat<float> current);

}  // namespace sortie::trainer::ops::cuda
