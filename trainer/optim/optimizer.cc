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
  if (layout.only_data()) return ops::sum_of_squares(context, store_.gradients(), sum);
  const CutPlaces places = layout.places();
  const Tensor part = context.empty(DType::f64, {1});
  ops::fill(context, 0.0, sum);
  for (const auto& parameter : store_.parameters()) {
    const CutRule& cut = parameter->spec().cut;
    const bool counts = cut.axis.has_value() || places.of(cut.group).index == 0;
    if (!parameter->trained() || !counts || !parameter->spec().tied_to.empty()) continue;
    const Tensor flat = parameter->grad().view({parameter->elements()});
    std::int64_t at = 0;
    for (const GlobalBlock& block : parameter->blocks()) {
      if (!block.repeated) {
        Tensor squares = part;
        ops::sum_of_squares(context, flat.slice(0, at, block.elements()), squares);
        ops::accumulate(context, squares, sum);
      }
      at += block.elements();
    }
  }
}

double Optimizer::learning_rate(std::int64_t step) const {
  return learning_rate_at(job_.learning_rate_scheduler, job_.trainer.train_iterations, step);
}

void Optimizer::update(ExecutionContext& context, std::int64_t schedule_step, double grad_norm) {
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
  std::vector<float> rates = {static_cast<float>(learning_rate(schedule_step))};
  std::vector<double> decays = {config.weight_decay};
  for (const config::TrainingGroup& group : groups_) {
    rates.push_back(static_cast<float>(
        learning_rate_at(group.schedule, job_.trainer.train_iterations, schedule_step)));
    decays.push_back(group.weight_decay.value_or(config.weight_decay));
  }
  for (std::size_t i = 0; i < group_of_.size(); ++i) {
    const Parameter& parameter = *store_.parameters()[i];
    if (!parameter.trained()) continue;
    const auto range = [&parameter](const Tensor& flat) {
      return flat.slice(0, parameter.offset(), parameter.elements());
    };
    step.lr = rates[group_of_[i]];
    step.weight_decay = parameter.spec().decay ? static_cast<float>(decays[group_of_[i]]) : 0.0f;
    Tensor weights = range(store_.master()), copy;
    Tensor first = range(store_.moment1()), second = range(store_.moment2());
    if (store_.compute_copy().defined()) copy = range(store_.compute_copy());
    ops::adamw(context, step, weights, range(store_.gradients()), first, second, copy);
  }
  store_.weights_changed();
}

}  // namespace sortie::trainer
