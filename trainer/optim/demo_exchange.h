// DeMo over the ranks that hold the same parameters (ops/demo.h has the recurrence): what each of
// them sends of its momentum, gathered by all of them in the order of their ranks. No gradient is
// reduced.
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
  /// Of a store that is laid out and keeps a momentum; both references must outlive it. Takes the
  /// memory of the messages.
  DemoExchange(ExecutionContext& context, const config::OptimizerConfig& settings,
               ParameterStore& store, Communicator& members);

  /// By parameter of the store.
  struct Rates {
    float lr, weight_decay;
  };
  /// The update of a step, from this rank's own gradients times `grad_scale`. Collective.
  void update(ExecutionContext& context, float grad_scale, std::span<const Rates> rates);

  /// That a member sends in a step.
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
