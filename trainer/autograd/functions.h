// The ops on the tape: each runs its forward kernel and records its backward step.
#pragma once

#include "trainer/autograd/graph.h"
#include "trainer/ops/attention.h"
#include "trainer/ops/linear.h"
#include "trainer/ops/norm.h"

namespace sortie::trainer {

/// [M] i32 -> [M, C]
Var embedding(Graph& graph, const Tensor& tokens, Parameter& table);

/// [M, K] -> [M, N]; bias may be null.
Var linear(Graph& graph, const Var& x, Parameter& weight, Parameter* bias);

struct NormParameters {
  ops::NormKind kind;
  Parameter* weight;
  Parameter* bias;  // null for rms
  float eps;
};

/// (residual + branch, norm(residual + branch)); an empty branch means zero.
struct ResidualNorm {
  Var residual, normed;
};
ResidualNorm residual_norm(Graph& graph, const Var& residual, const Var& branch,
                           const NormParameters& norm);

struct AttentionShape {
  std::int64_t batch, tokens, heads, kv_heads, head_dim;
};
/// qkv [B*T, (H + 2 KV) D] as [Q | K | V] -> [B*T, H D]. RoPE is applied in place on qkv's memory.
Var attention(Graph& graph, const Var& qkv, const AttentionShape& shape,
              const ops::RopeTable& rope);

Var swiglu(Graph& graph, const Var& gate_up);
Var gelu(Graph& graph, const Var& x);
Var add(Graph& graph, const Var& a, const Var& b);

/// Loss of the language-model head, summed over rows with a target. Where the graph records, the
/// gradients of `grad_scale * sum` are computed at once and enter the tape at h.
ops::CrossEntropyResult head_loss(Graph& graph, const Var& h, Parameter& head,
                                  const Tensor& targets, std::int64_t vocab_size, float grad_scale);

}  // namespace sortie::trainer
