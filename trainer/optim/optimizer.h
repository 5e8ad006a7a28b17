// The optimizer over the flat buffers: global norm, clipping, AdamW or DeMo. Groups of parameters
// can have their own weight decay or schedule.
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
  /// Both arguments must outlive it. Parameters must have been frozen before.
  Optimizer(const config::JobConfig& job, ParameterStore& store) : job_(job), store_(store) {}

  /// Call before the store is finalized: sets what it keeps for this optimizer. ErrorCode::config
  /// if the layout does not support the optimizer.
  Result<> prepare(const Layout& layout);
  /// Call after the store is finalized and before the first update. `layout` must outlive it.
  void begin(ExecutionContext& context, const Layout& layout);
  /// Whether gradients are not reduced over the ranks that hold the same parameters.
  bool own_gradients() const { return store_.own_momentum().has_value(); }
  /// Sets what performs the exchange within an update (DeMo's, between its members). A repeated
  /// update performs it at this point every time (RepeatedWork::between). If unset, it is performed
  /// at once.
  void set_between(DemoExchange::Between between) { between_ = std::move(between); }

  /// Assigns parameters to groups. ErrorCode::config for a pattern that matches no parameter, for a
  /// parameter that two groups include, and for a group of which nothing is trained.
  Result<> assign_groups(Patterns matching = Patterns::must_match);

  /// Sets `sum`, f64 [1], to the squared L2 norm of the gradients that this rank counts. They must
  /// be final (reduced over the replicas, except with own_gradients()). The sum is not finite if
  /// one of them is not.
  void squared_gradient_norm(ExecutionContext& context, const Layout& layout, Tensor& sum);
  /// Sums these over ranks in place, so that `sum` is that of the whole gradient and the same on
  /// all ranks. Collective over layout.model(), or over layout.world() with a sharded store (a rank
  /// counts its own share), with experts_apart() or own_gradients(). Every parameter is counted
  /// once: the first rank of a tensor-parallel group counts what all of its ranks have, and a
  /// parameter that is tied to another stage's is counted by that stage.
  void sum_squared_norms(ExecutionContext& context, const Layout& layout, Tensor& sum) const;
  /// The square of the norm is that sum times this factor. It is 1, except with own_gradients(),
  /// where no rank has the gradient of the whole batch: the norm is then the root mean square of
  /// the norms of the members' gradients, each for its own samples.
  double norm_weight(const Layout& layout) const;
  /// Performs the update for `step` (counted from 1) of the schedule, with learning rates
  /// multiplied by `rate`. Changes nothing if the step's gate (update_gate.h) is closed; the gate
  /// also has the scale of the gradients. With a sharded store, updates the own share. `updated` is
  /// called for every bucket when its own share has the new values (in the current stream), in the
  /// order in which a forward pass uses the buckets.
  void update(ExecutionContext& context, std::int64_t step, const Tensor& gate, double rate = 1.0,
              const std::function<void(std::size_t bucket)>& updated = {}) {
    set_step(context, step, rate);
    apply(context, gate, updated);
  }
  /// The same in two parts: set_step() writes what differs between steps to the device, and apply()
  /// performs the update from there, with the same work in every step.
  void set_step(ExecutionContext& context, std::int64_t step, double rate = 1.0);
  /// The exchange of DeMo is collective over the replicas, also if the gate is closed.
  void apply(ExecutionContext& context, const Tensor& gate,
             const std::function<void(std::size_t bucket)>& updated = {});

  /// Learning rate of parameters in no group.
  double learning_rate(std::int64_t step) const;

 private:
  /// Elements that are updated as one.
  struct UpdateRun {
    std::size_t parameter = 0;
    OwnRun run;
    ops::MomentRounding rounding{};  // of moments in bf16
  };
  Result<> check_last_group(const std::string& where) const;
  /// All runs in the order of the update: by bucket, from the last to the first.
  std::vector<UpdateRun> runs_in_order() const;
  /// Learning rates of a step of the schedule: of parameters in no group, then by group.
  std::vector<float> learning_rates(std::int64_t schedule_step, double rate) const;
  float weight_decay_of(std::size_t parameter) const;
  /// Learning rate of a parameter, f32 [1] on the device, for the step that was set.
  Tensor device_rate_of(std::size_t parameter) const;
  /// Rates by parameter, for the step that was set.
  std::vector<DemoExchange::Rates> rates_of_parameters() const;
  void update_adamw(ExecutionContext& context, const Tensor& gate,
                    const std::function<void(std::size_t bucket)>& updated);

  const config::JobConfig& job_;
  ParameterStore& store_;
  std::vector<config::TrainingGroup> groups_;
  std::vector<std::size_t> group_of_;   // by parameter: 0 = none, else 1 + index of the group
  std::unique_ptr<DemoExchange> demo_;  // if that is the optimizer
  DemoExchange::Between between_;
  std::vector<std::uint64_t> rounding_keys_;  // by parameter, for moments in bf16
  // Of the step that was set, on the device: its learning rates, f32, and its number, i64 [1].
  Tensor device_rates_, device_step_;
};

}  // namespace sortie::trainer
