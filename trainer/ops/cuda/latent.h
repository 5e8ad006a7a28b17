// Keys of latent attention (ops/latent.h): functions that the .cu file defines and host code calls.
// T: float or bf16.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"

namespace sortie::trainer::ops::cuda {

/// [M, H, columns] with strides in elements; the columns are dense.
template <class T>
struct HeadColumns {
  T* data = nullptr;
  std::int64_t row = 0, head = 0;
};
/// Tokens, heads, and a head's own and shared columns.
struct LatentSizes {
  std::int64_t rows = 0;
  int heads = 0, own = 0, shared = 0;
};

/// k [M, H, own + shared] = the first `own` columns of kv, then rope.
template <class T>
void join_latent_keys(cudaStream_t stream, const LatentSizes& sizes, HeadColumns<const T> kv,
                      Rows<const T> rope, HeadColumns<T> k);
/// The backward pass: writes the first `own` columns of dkv, and drope as the sum over heads.
template <class T>
void split_latent_keys(cudaStream_t stream, const LatentSizes& sizes, HeadColumns<const T> dk,
                       HeadColumns<T> dkv, Rows<T> drope);

}  // namespace sortie::trainer::ops::cuda
