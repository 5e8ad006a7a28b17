// The ops on the tape: each runs its forward kernel and records its backward step.
#pragma once

#include "trainer/autograd/graph.h"
#include "trainer/ops/attention.h"
#include "trainer/ops/dropout.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/linear.h"
#include "trainer/ops/norm.h"

namespace sortie::trainer {

struct ContextGroup;

/// tokens i32 [M] -> [M, C]. The result is zero for tokens outside this `part` of the table.
Var embedding(Graph& graph, const Tensor& tokens, Parameter& table,
              const ops::TablePart& part = {});

struct LinearOptions {
  /// False if another rank adds the bias to the sum. The bias gets its gradient here in either
  /// case.
  bool adds_bias = true;
  /// Postpones the gradients of weight and bias, so that they overlap with the next exchanges
  /// between ranks.
  bool beside_exchanges = false;
};
/// [M, K] -> [M, N], including the low-rank update of the weight if it has one; bias may be null.
Var linear(Graph& graph, const Var& x, Parameter& weight, Parameter* bias,
           LinearOptions options = {});
/// Records the backward step of linear() for a product `out` that the caller has computed. Does not
/// read out.data. Supports neither FP8 nor low-rank updates.
void record_linear(Graph& graph, const Var& x, Parameter& weight, Parameter* bias,
                   LinearOptions options, const Var& out);

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

/// Norm of each head of x [M, heads * D] separately; D = head_dim.
Var head_norm(Graph& graph, const Var& x, std::int64_t head_dim, const NormParameters& norm);

struct AttentionShape {
  std::int64_t batch, tokens, heads, kv_heads, head_dim;
  std::int64_t value_dim = 0;  // width of a value head, 0 = head_dim
  /// The ranks that share the tokens of each sequence (context parallelism); null = no sharing.
  const ContextGroup* group = nullptr;
};
/// RoPE of queries and keys: the table, and the row of the table for each token (i32 [B, T];
/// undefined = 0, 1, 2 ...). A null table means no rotation.
struct Rope {
  const ops::RopeTable* table = nullptr;
  Tensor positions = {};
};
/// qkv [B*T, (H + 2 KV) D] as [Q | K | V] -> [B*T, H D]. RoPE is applied in place on qkv's memory.
Var attention(Graph& graph, const Var& qkv, const AttentionShape& shape, const Rope& rope,
              const ops::AttentionMask& mask);
/// q [B*T, H D], k [B*T, KV D], v [B*T, KV Dv] -> [B*T, H Dv].
Var attention(Graph& graph, const Var& q, const Var& k, const Var& v, const AttentionShape& shape,
              const ops::AttentionMask& mask);
/// Applies RoPE to x [B*T, heads * D], in place on x's memory.
Var rope(Graph& graph, const Var& x, std::int64_t heads, const AttentionShape& shape,
         const Rope& rope);

Var swiglu(Graph& graph, const Var& gate_up);
Var gelu(Graph& graph, const Var& x, ops::Gelu kind);
Var add(Graph& graph, const Var& a, const Var& b);
/// x * factor
Var scaled(Graph& graph, const Var& x, float factor);
/// x [B*T, C] holds `samples` = B samples. Returns x itself if dropout is off.
Var dropout(Graph& graph, const Var& x, const ops::Dropout& dropout, std::int64_t samples);

/// Adds to `loss` f64 [2] the loss of the language-model head, summed over the rows with a target,
/// and the number of these rows; see ops::linear_cross_entropy. If the graph records, the gradients
/// of `grad_scale * sum` are computed at once: the head's is accumulated here, that of h enters the
/// tape in the backward pass.
void head_loss(Graph& graph, const Var& h, Parameter& head, const Tensor& targets,
               const ops::CrossEntropySpec& spec, Tensor& loss);

}  // namespace sortie::trainer
