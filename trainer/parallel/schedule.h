// The order in which a pipeline's stages work: 1F1B (Narayanan et al. 2019), interleaved 1F1B
// (Narayanan et al. 2021), and ZB-H1 (Qi et al. 2023), which computes the gradients of weights in
// actions of their own, at times when a stage would wait for another one.
//
// The layers are cut into stages * interleave runs, in order; stage s has the runs s, s + P, s + 2P
// ... as its runs 0, 1, 2 ... A micro-batch goes through all runs forward, then back. All functions
// are pure: every rank knows what every stage does and when it sends what.
#pragma once

#include <cstdint>
#include <vector>

namespace sortie::trainer {

struct PipelineShape {
  int stages = 1;
  int interleave = 1;  // runs of a stage
  std::int64_t micro_batches = 1;
  /// The gradients of weights are actions of their own (ZB-H1); one run a stage then.
  bool zero_bubble = false;

  int runs() const { return stages * interleave; }
  /// Of run `run` of a stage, among the runs of all stages.
  int global_run(int stage, int run) const { return run * stages + stage; }
};

/// One pass of one micro-batch through one run of a stage. With `zero_bubble` a backward pass gives
/// the gradients of inputs, and `weights` those of the weights.
struct PipelineAction {
  enum class Kind : std::uint8_t { forward, backward, weights } kind = Kind::forward;
  std::int64_t micro_batch = 0;
  int run = 0;  // of the stage
  bool operator==(const PipelineAction&) const = default;
};

/// What a stage does in a training step, in order. Where `interleave` is above 1 the micro-batches
/// are a multiple of the stages (checked). The gradients of weights come in the order of the
/// micro-batches in every schedule, so that they are added up to the same bits.
std::vector<PipelineAction> training_schedule(const PipelineShape& shape, int stage);

/// The same forward only, in groups of as many micro-batches as there are stages. Of any number.
std::vector<PipelineAction> forward_schedule(const PipelineShape& shape, int stage);

/// The most passes of a stage that are forward done and not yet backward (with `zero_bubble`: whose
/// weights have no gradients yet), in training: what memory for activations holds. 1F1B: stages -
/// stage, whatever the number of micro-batches; ZB-H1: stages, of which `stage` hold only what the
/// gradients of weights need.
std::int64_t most_in_flight(const PipelineShape& shape, int stage);

/// The share of a step in which a stage waits where all runs take equally long and messages take no
/// time: (p - 1) / (v m + p - 1). With `zero_bubble`, where a pass forward, the gradients of inputs
/// and those of weights take equally long: (p - 1) / (3 m + p - 1), with m >= p.
double bubble_share(const PipelineShape& shape);

/// What passes between stages: the result of an action, for the action that takes it up.
struct PipelineMessage {
  PipelineAction::Kind kind = PipelineAction::Kind::forward;
  std::int64_t micro_batch = 0;
  int run = 0;  // of the receiver
  bool operator==(const PipelineMessage&) const = default;
};

/// The stage that an action's result goes to, and as what; false after the last run forward and the
/// first one backward, and for gradients of weights.
bool message_of(const PipelineShape& shape, int stage, const PipelineAction& action, int& to,
                PipelineMessage& message);

/// What `from` sends to `to` when it does `actions`, in order: messages of two stages arrive in the
/// order in which they are sent.
std::vector<PipelineMessage> messages_between(const PipelineShape& shape, int from, int to,
                                              const std::vector<PipelineAction>& actions);

}  // namespace sortie::trainer
