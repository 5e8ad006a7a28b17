// Routers of a mixture of experts: they select the experts of each token and their weights. Also
// the losses that keep the experts evenly loaded. All in f32 whatever the activation dtype.
#pragma once

#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

/// Most experts of a mixture that GPUs support: kernels keep numbers of all experts in the shared
/// memory of a block.
inline constexpr std::int64_t kMaxExpertsOnGpu = 4096;

enum class RouterScore { softmax, sigmoid };

struct RouterSpec {
  RouterScore score = RouterScore::softmax;
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  /// Experts form `groups` equal groups. A token uses only the `kept_groups` with the largest sum
  /// of their two best choices; the others are excluded from the selection (-inf).
  std::int64_t groups = 1, kept_groups = 1;
  bool normalize = true;  // weights are divided by their sum
  float scale = 1.0f;     // and multiplied by this
};

/// scores [M, E] = softmax or sigmoid of logits [M, E];
/// choice = scores + bias [E] (undefined: 0), used only for the selection;
/// experts i32 [M, k] = the top k of the choices in the kept groups, best first; ties go to the
/// lower index, and NaN counts as the largest value;
/// weights [M, k] = scale * score / (sum of the k scores, + 1e-20 for sigmoid).
/// `replay` (i32 [M, k], may be undefined) replaces the selection.
void route_forward(ExecutionContext& context, const RouterSpec& spec, const Tensor& logits,
                   const Tensor& bias, const Tensor& replay, Tensor& scores, Tensor& experts,
                   Tensor& weights);

/// dlogits (overwritten) from dweights [M, k] and dscores [M, E]; either may be undefined. The
/// selection has no gradient.
void route_backward(ExecutionContext& context, const RouterSpec& spec, const Tensor& scores,
                    const Tensor& experts, const Tensor& dweights, const Tensor& dscores,
                    Tensor& dlogits);

/// counts f64 [E] (overwritten): how often each expert is in `experts` i32 [M, k].
void count_choices(ExecutionContext& context, const Tensor& experts, Tensor& counts);
/// counts f32 [S, E] (overwritten): the same for each of S equal parts of the rows. A part has at
/// most 2^24 choices.
void count_choices_of_parts(ExecutionContext& context, const Tensor& experts, Tensor& counts);

/// How many choices of each sequence an expert accepts.
struct ChoiceLimit {
  std::int64_t capacity = 0;
  std::int64_t sequences = 1;  // equal parts of the rows
  /// For sequences that are split: the local rows of each sequence are `parts` equal parts, and
  /// before f64 [parts, sequences, E] is the number of choices of each expert in the sequence
  /// before each part. Undefined: no earlier choices, and one part.
  Tensor before = {};
  std::int64_t parts() const { return before.defined() ? before.size(0) : 1; }
};
/// An expert accepts the first choices of each sequence of experts i32 [M, k], ordered by token,
/// then by choice, so that no token depends on a later one (GShard, Lepikhin et al. 2020, with a
/// sequence as the group): kept i32 [M, k] = experts, or -1 for a choice beyond the capacity.
/// dropped f64 [1] += the number of those.
void limit_choices(ExecutionContext& context, const Tensor& experts, std::int64_t expert_count,
                   const ChoiceLimit& limit, Tensor& kept, Tensor& dropped);

/// counts [S, E] f32 (overwritten): how often an expert is among the top_k of the scores alone
/// (neither bias nor groups), per sequence of M / S rows.
void count_top_experts(ExecutionContext& context, const Tensor& scores, std::int64_t top_k,
                       Tensor& counts);

/// Sequence-wise balance loss (DeepSeek-AI 2024), the mean over sequences of sum_e f_e P_e:
///   f_e = E / (k T) * counts_e,  P_e = mean over the T tokens of scores_e / sum of scores
/// loss f64 [1] += coefficient * that.
void sequence_balance(ExecutionContext& context, const Tensor& scores, const Tensor& counts,
                      std::int64_t top_k, double coefficient, Tensor& loss);
/// dscores (added to) += scale * d sequence_balance / d scores.
void sequence_balance_backward(ExecutionContext& context, const Tensor& scores,
                               const Tensor& counts, std::int64_t top_k, float scale,
                               Tensor& dscores);

/// sums f64 [E] += column sums of a matrix [M, E] f32, added up in an order that depends on M
/// alone.
void column_sums(ExecutionContext& context, const Tensor& matrix, Tensor& sums);

/// Load-balancing loss over all layers of a micro-batch together (Fedus et al. 2021, summed over
/// layers as Mixtral does): with C_e the assignments and Q_e the scores of expert e (f64 [E]), both
/// summed over all layers' `rows` rows,
///   loss f64 [1] += coefficient * E * sum_e (C_e / rows) (Q_e / rows)
void load_balance(ExecutionContext& context, const Tensor& assigned, const Tensor& score_sums,
                  double rows, double coefficient, Tensor& loss);
/// dscores (added to) += scale * d load_balance / d scores: scale * E * C_e / rows^2 in every row.
void load_balance_backward(ExecutionContext& context, const Tensor& assigned, double rows,
                           float scale, Tensor& dscores);

/// Aux-loss-free balancing (Wang et al. 2024): bias_e += rate * sign(mean(counts) - counts_e), with
/// counts f64 [E]. No-op if the gate of the step (update_gate.h) is closed.
void update_router_bias(ExecutionContext& context, const Tensor& gate, const Tensor& counts,
                        float rate, Tensor& bias);

}  // namespace sortie::trainer::ops
