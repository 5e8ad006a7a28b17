// Kernels on tokens: places and documents. All are dense i32 [sequences, length].
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"

namespace sortie::trainer::ops::cuda {

/// positions = first, first + 1, ... in every row.
void count_rows(cudaStream_t stream, std::int32_t first, Rows<std::int32_t> positions);
/// starts: the place behind the last token `end` or target kDocumentEnds (`targets` may be null)
/// before each place, 0 where there is none. positions (null: not wanted): the place minus its
/// start.
void find_starts(cudaStream_t stream, Rows<const std::int32_t> tokens, std::int32_t end,
                 const std::int32_t* targets, std::int32_t* starts, std::int32_t* positions);
/// shifted [i] = tokens [i + distance], or `missing` past the row or where `starts` (may be null)
/// differ.
void shift_rows(cudaStream_t stream, Rows<const std::int32_t> tokens, const std::int32_t* starts,
                std::int64_t distance, std::int32_t missing, std::int32_t* shifted);

}  // namespace sortie::trainer::ops::cuda
