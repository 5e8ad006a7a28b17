#include "trainer/optim/optimizer.h"

#include <fmt/core.h>

#include <algorithm>

#include "trainer/ops/copy.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/optimizer.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/random/portable_math.h"

namespace sortie::trainer {

Result<> Optimizer::assign_groups(Patterns matching) {
  groups_.clear();
  group_of_.assign(store_.parameters().size(), 0);
  for (const std::string& line : job_.optimizer.training_groups) {
    SORTIE_ASSIGN_OR_RETURN(config::TrainingGroup group,
                            config::parse_training_group(line, job_.learning_rate_scheduler));
    const std::string where = "optimizer.training_groups: group " + group.name;
    for (const auto* patterns : {&group.include, &group.exclude})
      for (const std::string& pattern : *patterns)
        if (matching == Patterns::must_match &&
            std::ranges::none_of(store_.parameters(), [&](const auto& parameter) {
              return config::name_matches(pattern, parameter->name());
            }))
          return fail(ErrorCode::config,
                      fmt::format("{}: \"{}\" matches no parameter; names are like {}", where,
                                  pattern, store_.parameters().back()->name()));
    groups_.push_back(std::move(group));
    for (std::size_t i = 0; i < group_of_.size(); ++i) {
      const std::string& name = store_.parameters()[i]->spec().whole_name();
      if (!config::any_matches(groups_.back().include, name) ||
          config::any_matches(groups_.back().exclude, name))
        continue;
      if (group_of_[i] != 0)
        return fail(ErrorCode::config,
                    fmt::format("{}: {} is in group {} too; exclude it from one of the two", where,
                                name, groups_[group_of_[i] - 1].name));
      group_of_[i] = groups_.size();
    }
  }
  return {};
}

void Optimizer::squared_gradient_norm(ExecutionContext& context, const Layout& layout,
                                      Tensor& sum) {
  // Padding in the flat buffer is zero and stays zero: the norm over all of it is the norm.
  if (layout.only_data() && !store_.sharded())
    return ops::sum_of_squares(context, store_.gradients(), sum);
  const CutPlaces places = layout.places();
  // Where sums are over all ranks, and not over those that hold one model, one of those that have
  // the same counts it.
  const auto first_of_same = [&](const Parameter& parameter) {
    if (store_.sharded() || !layout.experts_apart()) return true;
    return (store_.held_by(parameter) == ReduceGroup::expert ? layout.expert_replicas()
                                                             : layout.replicas())
               .rank() == 0;
  };
  const Tensor part = context.empty(DType::f64, {1});
  ops::fill(context, 0.0, sum);
  for (const auto& parameter : store_.parameters()) {
    const CutRule& cut = parameter->spec().cut;
    const bool counts = cut.axis.has_value() || places.of(cut.group).index == 0;
    if (!parameter->trained() || !counts || !parameter->spec().tied_to.empty() ||
        !first_of_same(*parameter))
      continue;
    for (const OwnPart& own : parameter->own_parts()) {
      if (own.block->repeated) continue;
      Tensor squares = part;
      ops::sum_of_squares(context, store_.gradients_of(own.run), squares);
      ops::accumulate(context, squares, sum);
    }
  }
}

double Optimizer::learning_rate(std::int64_t step) const {
  return learning_rate_at(job_.learning_rate_scheduler, job_.trainer.train_iterations, step);
}

std::vector<std::pair<std::size_t, OwnRun>> Optimizer::runs_in_order() const {
  std::vector<std::pair<std::size_t, OwnRun>> runs;
  for (std::size_t i = 0; i < store_.parameters().size(); ++i)
    if (store_.parameters()[i]->trained())
      for (const OwnRun& run : store_.parameters()[i]->own_runs()) runs.emplace_back(i, run);
  std::ranges::stable_sort(runs, std::greater<>(),
                           [](const auto& run) { return run.second.bucket; });
  return runs;
}

void Optimizer::update(ExecutionContext& context, std::int64_t schedule_step, double grad_norm,
                       double rate, const std::function<void(std::size_t)>& updated) {
  SORTIE_CHECK(group_of_.size() == store_.parameters().size(), "groups are not assigned");
  const config::OptimizerConfig& config = job_.optimizer;
  ++updates_;
  ops::AdamWStep step{};
  step.beta1 = static_cast<float>(config.beta1);
  step.beta2 = static_cast<float>(config.beta2);
  step.eps = static_cast<float>(config.eps);
  step.grad_scale = 1.0f;
  if (config.gradient_clipping > 0 && grad_norm > config.gradient_clipping)
    step.grad_scale = static_cast<float>(config.gradient_clipping / (grad_norm + 1e-6));
  step.correction1 = static_cast<float>(1.0 - portable_power(config.beta1, updates_));
  step.correction2 = static_cast<float>(1.0 - portable_power(config.beta2, updates_));

  // By group: 0 = none.
  std::vector<float> rates = {static_cast<float>(rate * learning_rate(schedule_step))};
  std::vector<double> decays = {config.weight_decay};
  for (const config::TrainingGroup& group : groups_) {
    rates.push_back(static_cast<float>(
        rate * learning_rate_at(group.schedule, job_.trainer.train_iterations, schedule_step)));
    decays.push_back(group.weight_decay.value_or(config.weight_decay));
  }
  // Buckets that are still to be told of: some have nothing of this rank but what fills them up.
  std::size_t waiting = store_.buckets().size();
  const auto tell_down_to = [&](std::size_t bucket) {
    while (waiting > bucket)
      if (--waiting; updated) updated(waiting);
  };
  for (const auto& [index, run] : runs_in_order()) {
    const Parameter& parameter = *store_.parameters()[index];
    if (store_.sharded()) tell_down_to(run.bucket + 1);
    const std::int64_t count = run.flat.elements();
    step.lr = rates[group_of_[index]];
    step.weight_decay =
        parameter.spec().decay ? static_cast<float>(decays[group_of_[index]]) : 0.0f;
    Tensor weights = store_.master().slice(0, run.master, count);
    Tensor first = store_.moment1().slice(0, run.moment, count);
    Tensor second = store_.moment2().slice(0, run.moment, count);
    Tensor copies = store_.copies_of(parameter, run);
    ops::adamw(context, step, weights, store_.gradients_of(run), first, second, copies);
  }
  tell_down_to(0);
  store_.weights_changed();
}

}  // namespace sortie::trainer
