// DeMo over the ranks that hold the same parameters (ops/demo.h has the recurrence): each of them
// sends the largest coefficients of its momentum, and all gather them in rank order. Gradients are
// not reduced.
#pragma once

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
    float lr, weight_decay;
  };
  /// Performs the update of a step, from this rank's own gradients times `grad_scale`. `rates` has
  /// one entry per parameter of the store. Collective.
  void update(ExecutionContext& context, float grad_scale, std::span<const Rates> rates);

  /// Bytes that a member sends in a step.
  std::int64_t message_bytes() const { return messages_.size(1); }

 private:
  struct Part {
    std::size_t parameter;
    OwnRun run;
    ops::DemoBlocks blocks;
    std::int64_t begin;  // in a message
  };

  float momentum_decay_;
  ParameterStore& store_;
  Communicator& members_;
  std::vector<Part> parts_;
  Tensor messages_;  // u8 [members, bytes]
};

}  // namespace sortie::trainer
