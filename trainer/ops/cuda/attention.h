// Attention (Dao et al. 2022, Dao 2023): functions that .cu files define and host code calls.
// Products in bf16 run on tensor cores, those in f32 as FMA. Kernels process whole tiles of queries
// and keys and skip tiles that a mask hides completely. T: float or bf16.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"

namespace sortie::trainer::ops::cuda {

/// [B, T, H, D]: the last dimension is dense, the others have strides in elements.
template <class T>
struct Heads {
  T* data = nullptr;
  std::int64_t sample = 0, token = 0, head = 0;
  /// Rows begin at multiples of 16 bytes and consist of whole pieces of 16 bytes.
  bool in_pieces = false;
};

/// [B, H, T] of f32; the last dimension is dense.
template <class T>
struct RowValues {
  T* data = nullptr;
  std::int64_t sample = 0, head = 0;
};

struct AttentionSizes {
  std::int64_t batch = 0;
  int queries = 0, keys = 0, heads = 0, key_heads = 0, dims = 0, value_dims = 0;
};

/// ops::AttentionMask as a kernel argument. A query sees the keys at its position and before that
/// are less than `window` away and not before its document's start.
struct KeyMask {
  float scale = 1.0f;
  int window = 0;  // larger than any distance if there is no window
  int first_query = 0, first_key = 0;
  std::int64_t tokens = 0;               // of the whole sequence, for dropout's element numbers
  const std::int32_t* starts = nullptr;  // [B, queries]; nullptr: one document
  std::int64_t starts_stride = 0;
  DropoutView dropout;
  const std::int32_t* place = nullptr;  // if not nullptr, forward passes read first_query from it
};

/// True if kernels read values from the device (place, dropout.first). Kernels are compiled with
/// and without these reads, because registers are scarce.
inline bool reads_values(const KeyMask& mask) {
  return mask.place != nullptr || mask.dropout.first != nullptr;
}

template <class T>
struct AttentionInputs {
  Heads<const T> q, k, v;
  AttentionSizes sizes;
  KeyMask mask;
};

/// What to do with the result over the keys of a call.
enum class AttentionResult {
  store,  // out in T
  parts,  // out in f32, one per range of the keys: AttentionOut::splits
  merge,  // out in f32, updated from the result over other keys to include these keys
};

template <class T>
struct AttentionOut {
  AttentionResult result = AttentionResult::store;
  Heads<T> out;          // store
  Heads<float> out_f32;  // parts and merge
  RowValues<float> lse;  // data is nullptr: not requested
  /// The keys are split into this many ranges. `out_f32` and `lse` of range s begin s strides
  /// later.
  int splits = 1;
  std::int64_t out_split = 0, lse_split = 0;
  /// The query heads of a key head are rows of one tile, for few queries over many keys.
  bool pack_heads = false;
};

template <class T>
void attention_forward_tiles(cudaStream_t stream, const AttentionInputs<T>& in,
                             const AttentionOut<T>& out);
/// out [B, T, H, Dv]: combines the results of AttentionResult::parts, in their order.
template <class T>
void join_attention_parts(cudaStream_t stream, const AttentionSizes& sizes, const float* parts,
                          const float* lse, int splits, Heads<T> out);

/// The same with warpgroup products, for GPUs of compute capability 9.0. Requires heads of at most
/// 128 dimensions whose rows are in pieces, AttentionResult::store or merge, no splits, no packed
/// heads and no KeyMask::place.
void attention_forward_sm90(cudaStream_t stream, const AttentionInputs<bf16>& in,
                            const AttentionOut<bf16>& out);

template <class T>
struct AttentionGradients {
  /// True: gradients are f32 and are added to. False: they are T and are overwritten.
  bool add = false;
  Heads<T> dq, dk, dv;
  Heads<float> dq_f32, dk_f32, dv_f32;
  /// Above 1: the query heads of a key head are split into this many groups, and dk and dv are
  /// written to the groups' sums, f32 [splits, B, keys, KV, D or Dv], for join_key_gradient().
  int splits = 1;
  float *dk_parts = nullptr, *dv_parts = nullptr;
};

/// delta [B, H, T] = sum over Dv of dout * out; fewer than 2^32 rows.
template <class T>
void attention_delta(cudaStream_t stream, const AttentionSizes& sizes, Heads<const T> out,
                     Heads<const T> dout, float* delta);
/// `delta` is computed by attention_delta(). Makes one pass over tiles of queries for dq, and one
/// or two over tiles of keys for dk and dv: every sum is computed by one block.
template <class T>
void attention_backward_tiles(cudaStream_t stream, const AttentionInputs<T>& in,
                              Heads<const T> dout, RowValues<const float> lse, const float* delta,
                              const AttentionGradients<T>& gradients);

/// The same with warpgroup products. Requires the same as attention_forward_sm90(), also of dout.
void attention_backward_sm90(cudaStream_t stream, const AttentionInputs<bf16>& in,
                             Heads<const bf16> dout, RowValues<const float> lse, const float* delta,
                             const AttentionGradients<bf16>& gradients);

/// gradient [B, keys, KV, columns] = sum of the parts in their order, or += if `add`.
template <class T>
void join_key_gradient(cudaStream_t stream, const AttentionSizes& sizes, const float* parts,
                       int splits, int columns, bool add, Heads<T> gradient);

}  // namespace sortie::trainer::ops::cuda
