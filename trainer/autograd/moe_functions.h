// Mixture of experts and latent attention on the tape.
#pragma once

#include <functional>
#include <span>

#include "trainer/autograd/functions.h"
#include "trainer/ops/moe_experts.h"
#include "trainer/ops/moe_router.h"

namespace sortie::trainer {

struct ExpertGroup;

/// logits f32 [M, N] = x [M, K] . W^T, multiplied in f32 for any dtype of x; W is a
/// Use::f32_matrix.
Var f32_linear(Graph& graph, const Var& x, Parameter& weight);

/// Inputs and outputs of the routers in the forward pass of one micro-batch. Mixtures are numbered
/// from 0 in the order of their layers. Must outlive the backward pass.
struct RouterPass {
  /// Selections i32 [M, k] per mixture that replace those of the routers; empty = none.
  std::vector<Tensor> replay = {};
  /// Factor of the gradients of the losses below: 1 / number of micro-batches of the step.
  float loss_scale = 1.0f;
  /// The ranks that share the tokens of each sequence; each computes its part of a sequence's
  /// losses. Null = no sharing.
  const ContextGroup* group = nullptr;

  // Outputs, written by the first forward pass of training, not by its recomputation. Undefined if
  // not computed.
  std::vector<Tensor> choices = {};  // i32 [M, k] per mixture
  std::vector<Tensor> counts = {};   // f64 [E]: how often each expert was chosen, per mixture
  Tensor dropped = {};  // f64 [1]: choices beyond an expert's capacity, of all mixtures
  /// f64 [E], inputs of ops::load_balance, summed over mixtures: the assignments of the rows of all
  /// ranks of the group, the scores of this rank's rows.
  Tensor assigned = {}, scores = {};
  double rows = 0.0;  // of all ranks of the group, summed over mixtures
  /// f64 [1] each, coefficient * loss: the sequence-wise balance loss summed over mixtures, and the
  /// load-balancing loss over all mixtures together, which finish_routing() writes.
  Tensor sequence_loss = {}, load_loss = {};

  /// Clears the outputs of an earlier pass.
  void begin() { *this = {.replay = std::move(replay), .loss_scale = loss_scale, .group = group}; }
};

struct RouterLosses {
  double sequence = 0.0;  // coefficient of ops::sequence_balance
  double load = 0.0;      // coefficient of ops::load_balance
};

struct Routed {
  Var weights;     // f32 [M, k]
  Tensor experts;  // i32 [M, k]; -1: dropped because an expert's capacity is used up
  /// Upper bound of the choices that are not dropped. These keep the weights that the router gave
  /// them.
  std::int64_t most = ops::kEveryChoice;
};
/// Routes the rows of `sequences` sequences by f32 logits [M, E], as mixture number `index` of the
/// pass. The gradients of the losses are added to that of the logits. `bias` f32 [E] may be
/// undefined. An expert accepts at most `capacity` choices of each sequence; 0 = no limit. Losses
/// and counts include dropped choices.
Routed route(Graph& graph, const Var& logits, const ops::RouterSpec& spec, const Tensor& bias,
             const RouterLosses& losses, std::int64_t sequences, std::int64_t capacity,
             std::int64_t index, RouterPass& pass);
/// Computes the load-balancing loss over all mixtures; call after the last router of a pass.
void finish_routing(ExecutionContext& context, double load_coefficient, RouterPass& pass);

/// y [M, C] = sum_j weights_j * down_e(silu(gate_e x) * up_e x) over a row's experts e. gate_up [2
/// F, C] and down [C, F] per expert; experts without rows get zero gradient. With
/// `beside_exchanges` the gradients of weights are postponed, to overlap with the next exchanges
/// between ranks.
Var experts(Graph& graph, const Var& x, const Routed& routed, std::span<Parameter* const> gate_up,
            std::span<Parameter* const> down, bool beside_exchanges = false);

/// The same under expert parallelism: rank r of the group has the r-th run of gate_up.size()
/// experts and its own rows x [M, C]; M may be 0. routed.experts are numbered over all ranks. Rows
/// are sent to the ranks of their experts and back (Lepikhin et al. 2020). `meanwhile`, which may
/// be empty, is called while they are sent to the experts; in the backward pass its steps run, and
/// postponed gradients of weights are computed, while the rows' gradients return. Collective, in
/// the backward pass too.
Var experts(Graph& graph, const Var& x, const Routed& routed, std::span<Parameter* const> gate_up,
            std::span<Parameter* const> down, const ExpertGroup& group,
            const std::function<void()>& meanwhile);

/// [a | b] of [M, A] and [M, B].
Var concat(Graph& graph, const Var& a, const Var& b);
/// The first `first` columns and the rest, as views.
std::pair<Var, Var> split(Graph& graph, const Var& x, std::int64_t first);

/// Multi-head latent attention after its projections (DeepSeek-AI 2024): q [B*T, H (N + R)], kv
/// [B*T, H (N + V)], rope_key [B*T, R] -> [B*T, H V], with N + R = shape.head_dim and V =
/// shape.value_dim. RoPE is applied to the last R dimensions of each query head and to rope_key, in
/// place on their memory. rope.table must not be null.
Var latent_attention(Graph& graph, const Var& q, const Var& kv, const Var& rope_key,
                     const AttentionShape& shape, const Rope& rope, const ops::AttentionMask& mask);

}  // namespace sortie::trainer
