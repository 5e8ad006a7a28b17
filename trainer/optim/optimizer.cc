#include "trainer/optim/optimizer.h"

#include <fmt/core.h>

#include <algorithm>

#include "trainer/ops/copy.h"
#include "trainer/ops/elementwise.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/random/random.h"

namespace sortie::trainer {

Result<> Optimizer::prepare(const Layout& layout) {
  if (job_.optimizer.moments == "bf16") store_.keep_moments_in(DType::bf16);
  if (job_.optimizer.name != "demo") return {};
  if (layout.experts_apart())
    return fail(
        ErrorCode::config,
        "optimizer.name = \"demo\": the ranks that hold one expert have to be those that hold "
        "all else; set topology.expert_tensor_parallel_size = tensor_parallel_size");
  store_.keep_own_momentum({layout.replicas().rank(), layout.replicas().size()});
  return {};
}

void Optimizer::begin(ExecutionContext& context, const Layout& layout) {
  if (store_.own_momentum())
    demo_ = std::make_unique<DemoExchange>(context, job_.optimizer, store_, layout.replicas());
  rounding_keys_.clear();
  if (store_.moment_dtype() == DType::f32) return;
  for (const auto& parameter : store_.parameters())
    rounding_keys_.push_back(random_key(static_cast<std::uint64_t>(job_.trainer.seed),
                                        "optimizer.moments." + parameter->spec().whole_name()));
}

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
    if (matching == Patterns::must_match) SORTIE_TRY(check_last_group(where));
  }
  return {};
}

/// A group without parameters that are trained would change nothing.
Result<> Optimizer::check_last_group(const std::string& where) const {
  bool any = false;
  for (std::size_t i = 0; i < group_of_.size(); ++i) {
    if (group_of_[i] != groups_.size()) continue;
    any = true;
    if (store_.parameters()[i]->trained()) return {};
  }
  if (!any)
    return fail(ErrorCode::config,
                where + ": it has no parameter, because exclude takes all of them out of it");
  if (job_.lora.rank > 0)
    return fail(ErrorCode::config,
                fmt::format("{}: all its parameters are frozen, because lora.rank trains only the "
                            "updates; name these, as include=*{},*{}",
                            where, kLoraDown, kLoraUp));
  return fail(ErrorCode::config,
              where +
                  ": none of its parameters is trained, because optimizer.freeze has them all; "
                  "remove the group, or free some");
}

void Optimizer::squared_gradient_norm(ExecutionContext& context, const Layout& layout,
                                      Tensor& sum) {
  // Padding in the flat buffer is zero and stays zero, so the norm of the whole buffer is the norm.
  if (layout.only_data() && !store_.sharded())
    return ops::sum_of_squares(context, store_.gradients(), sum);
  const CutPlaces places = layout.places();
  // If sums are over all ranks instead of those that hold one model, only the first of the ranks
  // that hold a parameter counts it.
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

void Optimizer::sum_squared_norms(ExecutionContext& context, const Layout& layout,
                                  Tensor& sum) const {
  const bool over_world = store_.sharded() || layout.experts_apart() || own_gradients();
  if (!over_world && layout.only_data()) return;
  Communicator& group = over_world ? layout.world() : layout.model();
  group.all_reduce_async(sum, ReduceOp::sum, context.record())->wait_on(context);
}

double Optimizer::norm_weight(const Layout& layout) const {
  // A member's gradient is scaled for the whole batch: that of its own samples alone is this many
  // times larger.
  return own_gradients() ? layout.replicas().size() : 1.0;
}

double Optimizer::learning_rate(std::int64_t step) const {
  return learning_rate_at(job_.learning_rate_scheduler, job_.trainer.train_iterations, step);
}

std::vector<Optimizer::UpdateRun> Optimizer::runs_in_order() const {
  std::vector<UpdateRun> runs;
  const bool rounded = store_.moment_dtype() == DType::bf16;
  SORTIE_CHECK(!rounded || rounding_keys_.size() == store_.parameters().size(),
               "an optimizer that has not begun");
  for (std::size_t i = 0; i < store_.parameters().size(); ++i) {
    const Parameter& parameter = *store_.parameters()[i];
    if (!parameter.trained()) continue;
    if (!rounded)
      for (const OwnRun& run : parameter.own_runs()) runs.push_back({i, run});
    // Elements are numbered by blocks. Padding comes after these, and stays zero without an update.
    for (const OwnPart& part : rounded ? parameter.own_parts() : std::vector<OwnPart>()) {
      const GlobalBlock& block = *part.block;
      const Shape& shape = parameter.spec().shape;
      const std::int64_t columns = shape.dims() == 2 ? shape[1] : 1;
      runs.push_back({i,
                      part.run,
                      {.key = rounding_keys_[i],
                       .step = device_step_,
                       .first = block.row * columns + block.column,
                       .begin = part.in_block,
                       .columns = block.columns,
                       .stride = columns}});
    }
  }
  std::ranges::stable_sort(runs, std::greater<>(),
                           [](const UpdateRun& one) { return one.run.bucket; });
  return runs;
}

std::vector<float> Optimizer::learning_rates(std::int64_t schedule_step, double rate) const {
  std::vector<float> rates = {static_cast<float>(rate * learning_rate(schedule_step))};
  for (const config::TrainingGroup& group : groups_)
    rates.push_back(static_cast<float>(
        rate * learning_rate_at(group.schedule, job_.trainer.train_iterations, schedule_step)));
  return rates;
}

float Optimizer::weight_decay_of(std::size_t parameter) const {
  if (!store_.parameters()[parameter]->spec().decay) return 0.0f;
  const std::size_t group = group_of_[parameter];
  const double decay = job_.optimizer.weight_decay;
  return static_cast<float>(group == 0 ? decay : groups_[group - 1].weight_decay.value_or(decay));
}

Tensor Optimizer::device_rate_of(std::size_t parameter) const {
  return device_rates_.slice(0, static_cast<std::int64_t>(group_of_[parameter]), 1);
}

std::vector<DemoExchange::Rates> Optimizer::rates_of_parameters() const {
  std::vector<DemoExchange::Rates> rates;
  for (std::size_t i = 0; i < group_of_.size(); ++i)
    rates.push_back({device_rate_of(i), weight_decay_of(i)});
  return rates;
}

void Optimizer::set_step(ExecutionContext& context, std::int64_t step, double rate) {
  const std::vector<float> rates = learning_rates(step, rate);
  const auto count = static_cast<std::int64_t>(rates.size());
  if (!device_step_.defined()) device_step_ = context.empty(DType::i64, {1});
  if (!device_rates_.defined() || device_rates_.elements() != count)
    device_rates_ = context.empty(DType::f32, {count});
  ops::copy_from_host<float>(context, rates, device_rates_);
  ops::write_scalar<std::int64_t>(context, step, device_step_);
}

void Optimizer::apply(ExecutionContext& context, const Tensor& gate,
                      const std::function<void(std::size_t)>& updated) {
  SORTIE_CHECK(group_of_.size() == store_.parameters().size(), "groups are not assigned");
  if (demo_)
    demo_->update(context, gate, rates_of_parameters(), between_);
  else
    update_adamw(context, gate, updated);
  store_.weights_changed();
}

void Optimizer::update_adamw(ExecutionContext& context, const Tensor& gate,
                             const std::function<void(std::size_t)>& updated) {
  const config::OptimizerConfig& config = job_.optimizer;
  ops::AdamWStep step{};
  step.beta1 = static_cast<float>(config.beta1);
  step.beta2 = static_cast<float>(config.beta2);
  step.eps = static_cast<float>(config.eps);
  step.gate = gate;
  // Buckets that were not reported yet: in some, this rank has nothing but padding.
  std::size_t waiting = store_.buckets().size();
  const auto tell_down_to = [&](std::size_t bucket) {
    while (waiting > bucket)
      if (--waiting; updated) updated(waiting);
  };
  for (const auto& [index, run, rounding] : runs_in_order()) {
    const Parameter& parameter = *store_.parameters()[index];
    if (store_.sharded()) tell_down_to(run.bucket + 1);
    const std::int64_t count = run.flat.elements();
    step.lr = device_rate_of(index);
    step.weight_decay = weight_decay_of(index);
    step.rounding = rounding;
    Tensor weights = store_.master().slice(0, run.master, count);
    Tensor first = store_.moment1().slice(0, run.moment, count);
    Tensor second = store_.moment2().slice(0, run.moment, count);
    Tensor copies = store_.copies_of(parameter, run);
    ops::adamw(context, step, weights, store_.gradients_of(run), first, second, copies);
  }
  tell_down_to(0);
}

}  // namespace sortie::trainer
