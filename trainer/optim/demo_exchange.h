// DeMo over the ranks that hold the same parameters (ops/demo.h has the recurrence): each of them
// sends the largest coefficients of its momentum, and all gather them in rank order. Gradients are
// not reduced.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "common/config/schema.h"
#include "trainer/nn/parameter_store.h"
#include "trainer/ops/demo.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

class DemoExchange {
 public:
  /// `store` must be finalized and keep its own momentum. `store` and `members` must outlive it.
  /// Allocates the memory of the messages.
  DemoExchange(ExecutionContext& context, const config::OptimizerConfig& settings,
               ParameterStore& store, Communicator& members);

  /// Rates of one parameter of the store.
  struct Rates {
    Tensor lr;  // f32 [1], on the device
    float weight_decay;
  };
  /// Performs what it is given at this point of the update, in every repetition of the update.
  using Between = std::function<void(std::function<void()> act)>;
  /// Performs the update of a step, from this rank's own gradients, if the gate (update_gate.h) is
  /// open. `rates` has one entry per parameter of the store. Collective, whether or not the gate is
  /// open: it is read on the device alone. If there are other members, the exchange with them is
  /// given to `between`; if that is empty, it is performed at once.
  void update(ExecutionContext& context, const Tensor& gate, std::span<const Rates> rates,
              const Between& between);

  /// Bytes that a member sends in a step.
  std::int64_t message_bytes() const { return messages_.size(1); }

 private:
  /// A block of the whole parameter (cut.h). What several ranks of a tensor-parallel group hold,
  /// such as a repeated key-value head, must not be transformed together with what only one of them
  /// holds: its copies would differ. Rows that pad a part are in no block and stay zero.
  struct Part {
    std::size_t parameter;
    OwnRun run;
    ops::DemoBlocks blocks;
    std::int64_t begin;  // in a message
  };
  Tensor own_message() const {
    return messages_.slice(0, members_.rank(), 1).view({message_bytes()});
  }
  void gather(ExecutionContext& context);

  float momentum_decay_;
  ParameterStore& store_;
  Communicator& members_;
  std::vector<Part> parts_;
  Tensor messages_;  // u8 [members, bytes]
};

}  // namespace sortie::trainer
