// Kernels on tokens: positions and documents. All are dense i32 [sequences, length].
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"

namespace sortie::trainer::ops::cuda {

/// positions = first, first + 1, ... in every row.
void count_rows(cudaStream_t stream, std::int32_t first, Rows<std::int32_t> positions);
/// starts: the position after the last token `end` or target kDocumentEnds (`targets` may be
/// nullptr) before each position, 0 if there is none. positions (nullptr: not wanted): the position
/// minus its start.
void find_starts(cudaStream_t stream, Rows<const std::int32_t> tokens, std::int32_t end,
                 const std::int32_t* targets, std::int32_t* starts, std::int32_t* positions);
/// shifted [i] = tokens [i + distance], or `missing` past the row or if `starts` (may be nullptr)
/// differ.
void shift_rows(cudaStream_t stream, Rows<const std::int32_t> tokens, const std::int32_t* starts,
                std::int64_t distance, std::int32_t missing, std::int32_t* shifted);

}  // namespace sortie::trainer::ops::cuda
