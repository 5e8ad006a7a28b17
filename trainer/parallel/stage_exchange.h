// What the stages of a pipeline send each other while they work: hidden states forward, their
// gradients back, and beside them sums that go through all stages.
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

/// One message. `sums` is undefined where there are none.
struct StageParcel {
  Tensor hidden, sums;
};

class StageExchange {
 public:
  /// How large messages are.
  struct Form {
    DType dtype = DType::f32;
    std::int64_t width = 0;                                      // columns of hidden states
    std::function<std::int64_t(std::int64_t micro_batch)> rows;  // of hidden states
    std::int64_t forward_sums = 0, backward_sums = 0;            // f64; 0 = none
    /// The first of all runs that has something to train: those before it get no gradients.
    std::int64_t first_trained_run = 0;
  };
  enum class Pass : std::uint8_t { training, forward_only };

  /// `stages` is the group of the stages of one model, in order. Both outlive it. Called by all
  /// stages.
  StageExchange(ExecutionContext& context, Communicator& stages)
      : context_(context), stages_(stages), lines_(stages) {}

  StageLines& lines() { return lines_; }

  /// Before the actions of one step, when the last one is finished. All stages call it alike.
  void begin(const PipelineShape& shape, Pass pass, Form form);
  /// Whether the pass of a run of this stage backward waits for a gradient, or gives one.
  bool takes_gradient(int run) const;
  bool gives_gradient(int run) const;

  /// Waits for what an action of this stage works on.
  StageParcel take(const PipelineAction& action);
  /// Sends the result of an action on its way; nothing where it goes to no other stage. Nobody
  /// writes to its tensors any more. Returns at once.
  void send(const PipelineAction& action, StageParcel parcel);
  /// Makes progress; cheap.
  void poll();
  /// Until all that was sent has been taken; between GPUs the current stream waits for that, and
  /// the host goes on.
  void finish();

 private:
  /// A message that is expected, in the order in which its sender sends.
  struct Expected {
    PipelineMessage message;
    Transfer hidden;
    std::optional<Transfer> sums;
  };
  struct Inbox {
    int from = 0;
    std::deque<PipelineMessage> next;  // not posted
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
