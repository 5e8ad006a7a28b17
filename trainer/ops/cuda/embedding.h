// Kernels of embedding tables.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"

namespace sortie::trainer::ops::cuda {

/// Tokens, and the token `first` of the table's first row. A token outside of this part has no row
/// here.
struct TableTokens {
  const std::int32_t* ids = nullptr;
  std::int64_t count = 0, first = 0;
};

/// y = rows of the table for the tokens, 0 for tokens without a row. T: float or bf16.
template <class T>
void gather_rows(cudaStream_t stream, const TableTokens& tokens, Rows<const T> table, Rows<T> y);

/// Sorts tokens by their table rows, those of one row in token order. `keys` and `scratch` have
/// tokens.count elements each: (table row) * 2^32 + (position of the token), with tokens of other
/// parts at the end. Returns the one of the two that holds the result. Threads share no counters,
/// so every run gives the same order.
std::int64_t* sort_tokens(cudaStream_t stream, const TableTokens& tokens, std::int64_t table_rows,
                          std::int64_t* keys, std::int64_t* scratch);
/// dtable += rows of dy, by sorted keys; for every row of the table in token order.
template <class T>
void add_rows_by_key(cudaStream_t stream, const std::int64_t* keys, Rows<const T> dy,
                     Rows<float> dtable);

}  // namespace sortie::trainer::ops::cuda
