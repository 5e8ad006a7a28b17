// Messages between the stages of a pipeline: hidden states forward, their gradients backward, and
// with both of them sums that pass through all stages.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "trainer/parallel/communicator.h"
#include "trainer/parallel/schedule.h"
#include "trainer/parallel/stage_lines.h"
#include "trainer/parallel/transfer.h"

namespace sortie::trainer {

/// One message. `sums` is undefined if there are none.
struct StageParcel {
  Tensor hidden, sums;
};

class StageExchange {
 public:
  /// Sizes of messages.
  struct Form {
    DType dtype = DType::f32;
    std::int64_t width = 0;                                      // columns of hidden states
    std::function<std::int64_t(std::int64_t micro_batch)> rows;  // of hidden states
    std::int64_t forward_sums = 0, backward_sums = 0;            // f64; 0 = none
    /// The first of all runs that has trained parameters: runs before it get no gradients.
    std::int64_t first_trained_run = 0;
  };
  enum class Pass : std::uint8_t { training, forward_only };

  /// `stages` is the group of the stages of one model, in order. Both arguments must outlive it.
  /// Collective over `stages`.
  StageExchange(ExecutionContext& context, Communicator& stages)
      : context_(context), stages_(stages), lines_(stages) {}

  StageLines& lines() { return lines_; }

  /// Call before the actions of a step, after finish() of the last one. All stages pass the same
  /// arguments.
  void begin(const PipelineShape& shape, Pass pass, Form form);
  /// Whether the backward pass of a run of this stage receives a gradient, or sends one.
  bool takes_gradient(int run) const;
  bool gives_gradient(int run) const;

  /// Returns the message that `action` of this stage consumes. The current stream waits for its
  /// values.
  StageParcel take(const PipelineAction& action);
  /// Starts to send the result of an action; no-op if no other stage needs it. Its tensors must not
  /// be written any more. Does not block.
  void send(const PipelineAction& action, StageParcel parcel);
  /// Makes progress; cheap.
  void poll();
  /// Blocks until everything sent was received. Between GPUs the current stream waits instead of
  /// the host.
  void finish();

 private:
  /// An expected message; they are in the order in which the sender sends them.
  struct Expected {
    PipelineMessage message;
    Transfer hidden;
    std::optional<Transfer> sums;
  };
  struct Inbox {
    int from = 0;
    std::deque<PipelineMessage> next;  // not posted yet
    std::deque<Expected> posted;
  };

  bool sent(int stage, const PipelineMessage& message) const;
  Inbox& inbox_of(const PipelineAction& action);
  void post_ahead(Inbox& inbox);
  void post(Inbox& inbox);
  void move_messages();

  ExecutionContext& context_;
  Communicator& stages_;
  StageLines lines_;
  PipelineShape shape_;
  Form form_;
  std::deque<Inbox> inboxes_;  // one for each stage that sends to this one
  std::deque<Transfer> sent_;
  bool polling_ = false;
};

}  // namespace sortie::trainer
