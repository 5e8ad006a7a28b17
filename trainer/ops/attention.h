// Causal self-attention with grouped queries, computed in blocks: the T x T scores exist only for
// one block of rows of one head at a time. Also rotary position embedding (RoPE).
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "trainer/ops/dropout.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

/// cos/sin tables f32 [T, rotary_dims / 2] of the angles t * frequency_i  (Su et al. 2021).
struct RopeTable {
  Tensor cos, sin;
  std::int64_t rotary_dims = 0;
  /// True: pair i is the dimensions 2i and 2i + 1. False: i and i + rotary_dims / 2.
  bool interleaved = false;
};
/// frequency_i = base^(-2 i / rotary_dims), one per pair of dimensions.
std::vector<double> rope_frequencies(std::int64_t rotary_dims, double base);
/// cos and sin of t * frequency, times `factor`.
RopeTable make_rope_table(ExecutionContext& context, std::int64_t positions,
                          std::span<const double> frequencies, double factor = 1.0);

/// Applies RoPE in place to the first rotary_dims of every head of x [B, T, H, D] (strided view).
/// `positions` i32 [B, T] are rows of the table; undefined = 0, 1, 2 ... inverse = true rotates
/// back, which is the backward pass. A position beyond the table stops the program; on a GPU it
/// makes the token NaN.
void rope(ExecutionContext& context, Tensor& x, const RopeTable& table, const Tensor& positions,
          bool inverse);

/// Widest heads, of queries, keys and values, that GPUs support.
inline constexpr std::int64_t kMaxHeadSizeOnGpu = 256;

/// For a call with only some queries and some keys of each sequence: their positions in it.
struct AttentionPart {
  std::int64_t first_query = 0, first_key = 0;
  std::int64_t tokens = 0;  // of the whole sequence
};

/// Which keys a query sees, and how scores are scaled. The query at position i sees the keys at
/// positions j <= i with i - j < window that are not before the start of its document. All
/// positions are those in the whole sequence.
struct AttentionMask {
  float scale = 1.0f;
  std::int64_t window = 0;     // 0 = all earlier tokens
  Tensor document_start = {};  // i32 [B, queries], values in [0, t]; undefined = one document
  Dropout dropout = {};        // of the probabilities; element number (h T + i) T + j of sample b
  std::optional<AttentionPart> part = {};  // none: all queries and all keys
  /// For attention_cached(): i32 on the device; the first value is the position of the first query.
  Tensor place = {};
};

/// out [B, T, H, Dv] = softmax(q k^T * scale, masked) v, query head h reads key head h / (H / KV).
/// q [B, T, H, D], k [B, T, KV, D] and v [B, T, KV, Dv] are strided views (slices of one QKV
/// buffer). lse [B, H, T] f32 (a strided view) receives the log-sum-exp of each row of scaled
/// scores, for the backward pass. (Dao et al. 2022.) GPUs support D and Dv up to 256.
///
/// With mask.part, q [B, Q, H, D] holds some of the queries and k, v [B, K, KV, ...] some of the
/// keys, and `out` is f32. `out` and `lse` then hold the result over other keys and are updated to
/// include these keys (Liu et al. 2023). They must be 0 and -infinity before the first keys.
void attention_forward(ExecutionContext& context, const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionMask& mask, Tensor& out, Tensor& lse);

/// Gradients of q, k, v (overwritten; strided views of one dQKV buffer). With mask.part they are
/// f32 and are added to; `out` and `lse` are the results over all keys.
void attention_backward(ExecutionContext& context, const Tensor& q, const Tensor& k,
                        const Tensor& v, const Tensor& out, const Tensor& lse, const Tensor& dout,
                        const AttentionMask& mask, Tensor& dq, Tensor& dk, Tensor& dv);

}  // namespace sortie::trainer::ops
