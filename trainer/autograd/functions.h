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

/// [M] i32 -> [M, C]; zero for tokens that another part of the table has.
Var embedding(Graph& graph, const Tensor& tokens, Parameter& table,
              const ops::TablePart& part = {});

struct LinearOptions {
  /// A bias that another rank adds to the sum has its gradient here all the same.
  bool adds_bias = true;
  /// The gradients of the weight and the bias are put off to the next exchanges between ranks.
  bool beside_exchanges = false;
};
/// [M, K] -> [M, N], with the weight's low-rank update where it has one; bias may be null.
Var linear(Graph& graph, const Var& x, Parameter& weight, Parameter* bias,
           LinearOptions options = {});
/// The backward step of linear() where somebody else has multiplied: of an `out` whose data is not
/// looked at, without FP8 and low-rank update.
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

/// Norm of each head of x [M, heads * D] by itself.
Var head_norm(Graph& graph, const Var& x, std::int64_t head_dim, const NormParameters& norm);

struct AttentionShape {
  std::int64_t batch, tokens, heads, kv_heads, head_dim;
  std::int64_t value_dim = 0;  // width of a value head, 0 = head_dim
  /// The ranks that have the other tokens of the sequences; null = there are none.
  const ContextGroup* group = nullptr;
};
/// RoPE of queries and keys: the table, and its row for each token (i32 [B, T]; undefined = 0, 1, 2
/// ...). A null table turns nothing.
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
/// RoPE of x [B*T, heads * D], in place on x's memory.
Var rope(Graph& graph, const Var& x, std::int64_t heads, const AttentionShape& shape,
         const Rope& rope);

Var swiglu(Graph& graph, const Var& gate_up);
Var gelu(Graph& graph, const Var& x, ops::Gelu kind);
Var add(Graph& graph, const Var& a, const Var& b);
/// x * factor
Var scaled(Graph& graph, const Var& x, float factor);
/// x itself where nothing is dropped. x [B*T, C] of `samples` = B samples.
Var dropout(Graph& graph, const Var& x, const ops::Dropout& dropout, std::int64_t samples);

/// Loss of the language-model head, summed over rows with a target, and their number: added to
/// `loss` f64 [2], see ops::linear_cross_entropy. Where the graph records, the gradients of
/// `grad_scale * sum` are computed at once and enter the tape at h.
void head_loss(Graph& graph, const Var& h, Parameter& head, const Tensor& targets,
               const ops::CrossEntropySpec& spec, Tensor& loss);

}  // namespace sortie::trainer
