// Causal self-attention with grouped queries, in blocks: the T x T scores exist for one block of
// rows of one head at a time. Rotary position embedding.
#pragma once

#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

/// cos/sin tables f32 [T, rotary_dims / 2]: angle(t, i) = t * base^(-2 i / rotary_dims)  (Su et al.
/// 2021).
struct RopeTable {
  Tensor cos, sin;
  std::int64_t rotary_dims = 0;
};
RopeTable make_rope_table(ExecutionContext& context, std::int64_t positions,
                          std::int64_t rotary_dims, double base);

/// Rotate-half RoPE in place on the first rotary_dims of every head of x [B, T, H, D] (strided
/// view). inverse = true turns back: that is the backward pass.
void rope(ExecutionContext& context, Tensor& x, const RopeTable& table, bool inverse);

/// out [B, T, H, D] = softmax(q k^T * scale, causal) v, query head h reads key head h / (H / KV).
/// q [B, T, H, D], k and v [B, T, KV, D] are strided views (slices of one QKV buffer). lse [B, H,
/// T] f32 receives the log-sum-exp of each row of scaled scores, for the backward pass. (Dao et al.
/// 2022.)
void attention_forward(ExecutionContext& context, const Tensor& q, const Tensor& k, const Tensor& v,
                       float scale, Tensor& out, Tensor& lse);

/// Gradients of q, k, v (overwritten; strided views of one dQKV buffer).
void attention_backward(ExecutionContext& context, const Tensor& q, const Tensor& k,
                        const Tensor& v, const Tensor& out, const Tensor& lse, const Tensor& dout,
                        float scale, Tensor& dq, Tensor& dk, Tensor& dv);

}  // namespace sortie::trainer::ops
