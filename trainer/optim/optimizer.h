// The optimizer over the flat buffers: global norm, clipping, AdamW or DeMo, with groups of
// parameters that have a decay or a schedule of their own.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "common/config/training_groups.h"
#include "trainer/nn/lora.h"
#include "trainer/nn/parameter_store.h"
#include "trainer/ops/optimizer.h"
#include "trainer/optim/demo_exchange.h"
#include "trainer/parallel/layout.h"

namespace sortie::trainer {

class Optimizer {
 public:
  /// Both must outlive it; which parameters are frozen is decided before.
  Optimizer(const config::JobConfig& job, ParameterStore& store) : job_(job), store_(store) {}

  /// Before the store is laid out: what it has to keep for this optimizer. ErrorCode::config where
  /// the device has not what the optimizer needs.
  Result<> prepare(ExecutionContext& context, const Layout& layout);
  /// After the store is laid out, before the first update; `layout` must outlive it.
  void begin(ExecutionContext& context, const Layout& layout);
  /// Ranks that hold the same parameters keep their gradients to themselves.
  bool own_gradients() const { return store_.own_momentum().has_value(); }

  /// Gives every parameter its group. ErrorCode::config for a pattern that matches no parameter,
  /// and for a parameter that two groups include.
  Result<> assign_groups(Patterns matching = Patterns::must_match);

  /// sum f64 [1] = squared L2 norm of the gradients that this rank counts, which must be final
  /// (reduced over the replicas, but for own_gradients()). Not finite when one of them is not.
  void squared_gradient_norm(ExecutionContext& context, const Layout& layout, Tensor& sum);
  /// Makes that the whole gradient's, alike on all ranks, where it lies; collective. Summed over
  /// layout.model(), or of a sharded store, where a rank counts its own share, or where experts are
  /// apart over layout.world(), every parameter is counted once: what all ranks of a
  /// tensor-parallel group have by the first of them, and what is tied to another stage's parameter
  /// by that stage.
  void sum_squared_norms(ExecutionContext& context, const Layout& layout, Tensor& sum) const;
  /// How many times that sum is the square of the norm. 1 but with own_gradients(), where nobody
  /// has the gradient of the whole batch: the norm is the root mean square of the norms of what its
  /// members have, each for its own samples.
  double norm_weight(const Layout& layout) const;
  /// The update of a step (counted from 1) of the schedule, whose learning rates count `rate`
  /// times; nothing is changed where the step's gate (update_gate.h) is closed, which also says how
  /// gradients are scaled. Of a sharded store the own share; `updated` is told of every bucket that
  /// has its new values there (in the current stream), those that a forward pass uses first at the
  /// front.
  void update(ExecutionContext& context, std::int64_t step, const Tensor& gate, double rate = 1.0,
              const std::function<void(std::size_t bucket)>& updated = {}) {
    set_step(context, step, rate);
    apply(context, gate, updated);
  }
  /// The same in two parts: what differs from step to step is written to the device, and the update
  /// by what is there, which is the same work in every step.
  void set_step(ExecutionContext& context, std::int64_t step, double rate = 1.0);
  void apply(ExecutionContext& context, const Tensor& gate,
             const std::function<void(std::size_t bucket)>& updated = {});

  /// Of parameters in no group.
  double learning_rate(std::int64_t step) const;

 private:
  /// What is updated as one.
  struct UpdateRun {
    std::size_t parameter = 0;
    OwnRun run;
    ops::MomentRounding rounding{};  // of moments in bf16
  };
  /// In the order of the update: by bucket from the last to the first.
  std::vector<UpdateRun> runs_in_order() const;
  /// Of a step of the schedule: of parameters in no group, then by group.
  std::vector<float> learning_rates(std::int64_t schedule_step, double rate) const;
  float weight_decay_of(std::size_t parameter) const;
  /// By parameter, of the step that was set.
  std::vector<DemoExchange::Rates> rates_of_parameters() const;
  void update_adamw(ExecutionContext& context, const Tensor& gate,
                    const std::function<void(std::size_t bucket)>& updated);

  const config::JobConfig& job_;
  ParameterStore& store_;
  std::vector<config::TrainingGroup> groups_;
  std::vector<std::size_t> group_of_;         // by parameter: 0 = none, else 1 + index of the group
  std::unique_ptr<DemoExchange> demo_;        // where that is the optimizer
  std::vector<std::uint64_t> rounding_keys_;  // by parameter, of moments in bf16
  // Of the step that was set: learning rates, here and f32 on the device, and i64 [1] its number.
  std::vector<float> rates_;
  Tensor device_rates_, device_step_;
};

}  // namespace sortie::trainer
