// Mixture of experts and latent attention on the tape.
#pragma once

#include <functional>
#include <span>

#include "trainer/autograd/functions.h"
#include "trainer/ops/moe_experts.h"
#include "trainer/ops/moe_router.h"

namespace sortie::trainer {

struct ExpertGroup;

/// logits f32 [M, N] = x [M, K] . W^T, multiplied in f32 whatever x is; W is a Use::f32_matrix.
Var f32_linear(Graph& graph, const Var& x, Parameter& weight);

/// What the routers of one micro-batch's forward pass are told and leave behind. Mixtures are
/// counted from 0 in the order of their layers. Lives until the backward pass is over.
struct RouterPass {
  /// Selections i32 [M, k] per mixture to take instead of their own; empty = none.
  std::vector<Tensor> replay = {};
  /// The gradients of the losses below are times this: 1 / number of micro-batches of the step.
  float loss_scale = 1.0f;
  /// The ranks that share the tokens of each sequence: a sequence's losses are theirs together.
  const ContextGroup* group = nullptr;

  // Left behind by the first forward pass of training, not by its recomputation. What is not
  // computed is undefined.
  std::vector<Tensor> choices = {};  // i32 [M, k] per mixture
  std::vector<Tensor> counts = {};   // f64 [E]: how often each expert was chosen, per mixture
  Tensor dropped = {};               // f64 [1]: choices over an expert's capacity, of all mixtures
  /// f64 [E] of load_balance, summed over mixtures: assignments of the rows of all ranks of the
  /// group, scores of this rank's.
  Tensor assigned = {}, scores = {};
  double rows = 0.0;  // of all ranks of the group
  /// f64 [1]: coefficient * loss, of the sequences' balance summed over mixtures, then, by
  /// finish_routing(), of the load balance over all mixtures. f64 [1].
  Tensor sequence_loss = {}, load_loss = {};

  /// Forgets what an earlier pass left behind.
  void begin() { *this = {.replay = std::move(replay), .loss_scale = loss_scale, .group = group}; }
};

struct RouterLosses {
  double sequence = 0.0;  // coefficient of ops::sequence_balance
  double load = 0.0;      // coefficient of ops::load_balance
};

struct Routed {
  Var weights;     // f32 [M, k]
  Tensor experts;  // i32 [M, k]; -1: dropped, where experts have a capacity
  /// The most choices that are not dropped. They keep the weights that the router gave them.
  std::int64_t most = ops::kEveryChoice;
};
/// Routes the rows of `sequences` sequences by f32 logits [M, E] as mixture number `index` of the
/// pass. The gradients of the losses enter at the logits. `bias` f32 [E] may be undefined. An
/// expert takes `capacity` choices of each sequence at most, 0 = all; losses and counts are of all
/// choices.
Routed route(Graph& graph, const Var& logits, const ops::RouterSpec& spec, const Tensor& bias,
             const RouterLosses& losses, std::int64_t sequences, std::int64_t capacity,
             std::int64_t index, RouterPass& pass);
/// After the last router of a pass: the load-balancing loss over all of them.
void finish_routing(ExecutionContext& context, double load_coefficient, RouterPass& pass);

/// y [M, C] = sum_j weights_j * down_e(silu(gate_e x) * up_e x) over a row's experts e. gate_up [2
/// F, C] and down [C, F] per expert; those without rows get zero gradient. The gradients of weights
/// may be put off to the next exchanges between ranks.
Var experts(Graph& graph, const Var& x, const Routed& routed, std::span<Parameter* const> gate_up,
            std::span<Parameter* const> down, bool beside_exchanges = false);

/// The same where each rank of the group has the next experts, as many as these, and rows of its
/// own [M, C], of which there may be none; routed.experts count all. Rows travel to the ranks of
/// their experts and back (Lepikhin et al. 2020); `meanwhile`, which may be empty, is called while
/// they go there, and its backward steps run, and the gradients of weights are computed, while
/// their gradients come back. Collective: in the backward pass, too.
Var experts(Graph& graph, const Var& x, const Routed& routed, std::span<Parameter* const> gate_up,
            std::span<Parameter* const> down, const ExpertGroup& group,
            const std::function<void()>& meanwhile);

/// [a | b] of [M, A] and [M, B].
Var concat(Graph& graph, const Var& a, const Var& b);
/// The first `first` columns and the rest, as views.
std::pair<Var, Var> split(Graph& graph, const Var& x, std::int64_t first);

/// Multi-head latent attention after its projections (DeepSeek-AI 2024): q [B*T, H (N + R)], kv
/// [B*T, H (N + V)], rope_key [B*T, R] -> [B*T, H V], with N + R = shape.head_dim and V =
/// shape.value_dim. RoPE turns the last R of each query head and rope_key, in place on their
/// memory.
Var latent_attention(Graph& graph, const Var& q, const Var& kv, const Var& rope_key,
                     const AttentionShape& shape, const Rope& rope, const ops::AttentionMask& mask);

}  // namespace sortie::trainer
