// Pipeline schedules, the order in which stages work: 1F1B (Narayanan et al. 2019), interleaved
// 1F1B (Narayanan et al. 2021), and ZB-H1 (Qi et al. 2023), which computes the gradients of weights
// in separate actions while a stage would otherwise wait for another one.
//
// The layers are divided into stages * interleave runs, in order. Stage s of P has the runs s, s +
// P, s + 2P ... as its runs 0, 1, 2 ... A micro-batch passes through all runs forward, then
// backward. All functions are pure: every rank can compute what every stage does and when it sends
// each message.
#pragma once

#include <cstdint>
#include <vector>

namespace sortie::trainer {

struct PipelineShape {
  int stages = 1;
  int interleave = 1;  // runs per stage
  std::int64_t micro_batches = 1;
  /// The gradients of weights are computed in separate actions (ZB-H1). Requires interleave = 1.
  bool zero_bubble = false;

  int runs() const { return stages * interleave; }
  /// Index of run `run` of a stage among the runs of all stages.
  int global_run(int stage, int run) const { return run * stages + stage; }
};

/// One pass of one micro-batch through one run of a stage. With `zero_bubble`, a backward pass
/// computes the gradients of inputs, and `weights` those of the weights.
struct PipelineAction {
  enum class Kind : std::uint8_t { forward, backward, weights } kind = Kind::forward;
  std::int64_t micro_batch = 0;
  int run = 0;  // of the stage
  bool operator==(const PipelineAction&) const = default;
};

/// Returns the actions of a stage in a training step, in order. If `interleave` is above 1,
/// micro_batches must be a multiple of stages (checked). Every schedule computes the gradients of
/// weights in the order of the micro-batches, so that their sums are bit-identical.
std::vector<PipelineAction> training_schedule(const PipelineShape& shape, int stage);

/// The same for forward passes only, in groups of as many micro-batches as there are stages.
/// Supports any number of micro-batches.
std::vector<PipelineAction> forward_schedule(const PipelineShape& shape, int stage);

/// Maximum number of passes of a stage whose forward pass is done and whose backward pass is not
/// (with `zero_bubble`: whose gradients of weights are not computed) in a training step. It
/// determines the memory for activations. With enough micro-batches it is stages - stage for 1F1B,
/// however many there are, and `stages` for ZB-H1, of which `stage` hold only what the gradients of
/// weights need.
std::int64_t most_in_flight(const PipelineShape& shape, int stage);

/// Fraction of a step in which a stage waits if all runs take equally long and messages take no
/// time: (p - 1) / (v m + p - 1). With `zero_bubble`, if a forward pass, the gradients of inputs
/// and those of weights take equally long: (p - 1) / (3 m + p - 1), for m >= p.
double bubble_share(const PipelineShape& shape);

/// A message between stages: the result of an action, named by the action that consumes it.
struct PipelineMessage {
  PipelineAction::Kind kind = PipelineAction::Kind::forward;
  std::int64_t micro_batch = 0;
  int run = 0;  // of the receiver
  bool operator==(const PipelineMessage&) const = default;
};

/// Sets the stage that receives the result of an action, and the message. Returns false if there is
/// none: for the last run forward, the first run backward, and gradients of weights.
bool message_of(const PipelineShape& shape, int stage, const PipelineAction& action, int& to,
                PipelineMessage& message);

/// The messages that `from` sends to `to` when it performs `actions`, in order. Messages between
/// two stages arrive in the order in which they are sent.
std::vector<PipelineMessage> messages_between(const PipelineShape& shape, int from, int to,
                                              const std::vector<PipelineAction>& actions);

}  // namespace sortie::trainer
