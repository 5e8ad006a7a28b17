// Kernels of embedding tables.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"

namespace sortie::trainer::ops::cuda {

/// Tokens, and which table row `first` is the first of this part's. A token outside of the part has
/// no row here.
struct TableTokens {
  const std::int32_t* ids = nullptr;
  std::int64_t count = 0, first = 0;
};

/// y = rows of the table by token, or 0. T: float or bf16.
template <class T>
void gather_rows(cudaStream_t stream, const TableTokens& tokens, Rows<const T> table, Rows<T> y);

/// Tokens in the order of their table rows, those of one row in the order of the tokens: `keys` and
/// `scratch` have tokens.count elements each, (table row) * 2^32 + (place of the token), at the end
/// tokens of other parts. Returns the one of the two that holds the result. No counters that
/// threads add to: the same order in every run.
std::int64_t* sort_tokens(cudaStream_t stream, const TableTokens& tokens, std::int64_t table_rows,
                          std::int64_t* keys, std::int64_t* scratch);
/// dtable += rows of dy, by sorted keys; for every row of the table in the order of the tokens.
template <class T>
void add_rows_by_key(cudaStream_t stream, const std::int64_t* keys, Rows<const T> dy,
                     Rows<float> dtable);

}  // namespace sortie::trainer::ops::cuda
