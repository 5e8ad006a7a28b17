// Attention (Dao et al. 2022, Dao 2023): what .cu files define and host code starts. Products in
// bf16 go to tensor cores, those of f32 to FMA. Kernels take whole tiles of queries and keys;
// tiles that a mask hides as a whole are passed over. T: float or bf16.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"

namespace sortie::trainer::ops::cuda {

/// [B, T, H, D]: the last dimension is dense, the others have strides in elements.
template <class T>
struct Heads {
  T* data = nullptr;
  std::int64_t sample = 0, token = 0, head = 0;
  /// Rows begin at multiples of 16 bytes and have whole pieces of 16 bytes.
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

/// ops::AttentionMask. A query sees the keys of its place and before, less than `window` away and
/// not before its document's start.
struct KeyMask {
  float scale = 1.0f;
  int window = 0;  // larger than any distance where there is none
  int first_query = 0, first_key = 0;
  std::int64_t tokens = 0;               // of the whole sequence: of dropout's numbers
  const std::int32_t* starts = nullptr;  // [B, queries]; null: one document
  std::int64_t starts_stride = 0;
  DropoutView dropout;
  const std::int32_t* place = nullptr;  // forward passes read first_query there, if it is not null
};

/// Whether there are values that kernels read: they are compiled with and without, as registers are
/// few.
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
  parts,  // out in f32, of a range of the keys each: AttentionOut::splits
  merge,  // out in f32, brought from the result over other keys to that over these as well
};

template <class T>
struct AttentionOut {
  AttentionResult result = AttentionResult::store;
  Heads<T> out;          // store
  Heads<float> out_f32;  // parts and merge
  RowValues<float> lse;  // null: not asked for
  /// The keys are cut into so many ranges, and `out_f32` and `lse` of range s begin s strides on.
  int splits = 1;
  std::int64_t out_split = 0, lse_split = 0;
  /// The query heads of a key head are rows of one tile: for few queries over many keys.
  bool pack_heads = false;
};

template <class T>
void attention_forward_tiles(cudaStream_t stream, const AttentionInputs<T>& in,
                             const AttentionOut<T>& out);
/// out [B, T, H, Dv]: the parts of AttentionResult::parts put together in their order.
template <class T>
void join_attention_parts(cudaStream_t stream, const AttentionSizes& sizes, const float* parts,
                          const float* lse, int splits, Heads<T> out);

/// The same on GPUs of compute capability 9.0, by products of warpgroups: heads of up to 128
/// dimensions whose rows are in pieces, AttentionResult::store or merge, no splits, no packed heads
/// and no KeyMask::place.
void attention_forward_sm90(cudaStream_t stream, const AttentionInputs<bf16>& in,
                            const AttentionOut<bf16>& out);

template <class T>
struct AttentionGradients {
  /// Gradients are f32 and added to, else T and overwritten.
  bool add = false;
  Heads<T> dq, dk, dv;
  Heads<float> dq_f32, dk_f32, dv_f32;
  /// Above 1: the query heads of a key head are cut into so many groups, and dk and dv go to the
  /// groups' sums, f32 [splits, B, keys, KV, D or Dv], for join_key_gradient.
  int splits = 1;
  float *dk_parts = nullptr, *dv_parts = nullptr;
};

/// delta [B, H, T] = the sum over Dv of dout * out; fewer than 2^32 rows.
template <class T>
void attention_delta(cudaStream_t stream, const AttentionSizes& sizes, Heads<const T> out,
                     Heads<const T> dout, float* delta);
/// `delta` is attention_delta's. One pass over tiles of queries for dq, one or two over tiles of
/// keys for dk and dv: no sum is made by more than one block.
template <class T>
void attention_backward_tiles(cudaStream_t stream, const AttentionInputs<T>& in,
                              Heads<const T> dout, RowValues<const float> lse, const float* delta,
                              const AttentionGradients<T>& gradients);

/// The same as attention_forward_sm90() is to attention_forward_tiles().
void attention_backward_sm90(cudaStream_t stream, const AttentionInputs<bf16>& in,
                             Heads<const bf16> dout, RowValues<const float> lse, const float* delta,
                             const AttentionGradients<bf16>& gradients);

/// gradient [B, keys, KV, columns] = the sum of the parts in their order, or added to.
template <class T>
void join_key_gradient(cudaStream_t stream, const AttentionSizes& sizes, const float* parts,
                       int splits, int columns, bool add, Heads<T> gradient);

}  // namespace sortie::trainer::ops::cuda
