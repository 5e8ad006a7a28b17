// The passes of a step: micro-batches, the inputs that differ between them, and CUDA graphs of
// passes.
#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "trainer/loop/training_step.h"

namespace sortie::trainer {

namespace {

using training::Section;

}  // namespace

Result<TrainingStep::Batch> TrainingStep::next_batch(std::int64_t first_sample) {
  const Span span(*this, Section::data);
  const Shape shape{batch_.micro_batch_size, job_.model.sequence_length};
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.elements()));
  std::vector<std::int32_t> targets(tokens.size());
  SORTIE_TRY(prefetcher_->next(first_sample, tokens, targets));
  Batch batch;
  if (training_.masks_targets())
    batch.counted = std::ranges::count_if(targets, [](std::int32_t id) { return id >= 0; });
  Event copied;
  {
    const auto stream = context_.with_stream(StreamKind::copy);
    batch.tokens = ops::tensor_from_host<std::int32_t>(context_, tokens, shape);
    batch.targets = ops::tensor_from_host<std::int32_t>(context_, targets, shape);
    copied = context_.record();
  }
  context_.wait(copied);
  return batch;
}

Result<std::int64_t> TrainingStep::count_targets(std::int64_t micro_steps,
                                                 std::vector<Batch>& batches) {
  const std::int64_t samples = micro_steps * replicas() * batch_.micro_batch_size;
  if (!training_.masks_targets()) return samples * job_.model.sequence_length;
  double counted = 0.0;
  for (std::int64_t micro = 0; micro < micro_steps; ++micro) {
    SORTIE_ASSIGN_OR_RETURN(Batch batch, next_batch(first_sample_of(micro)));
    counted += static_cast<double>(batch.counted);
    batches.push_back(std::move(batch));
  }
  marks_.enter(Section::reduce);
  if (layout_.coordinate(Axis::context) > 0) counted = 0.0;  // ranks sharing samples count the same
  layout_.replicas().all_reduce_sum({&counted, 1});
  return static_cast<std::int64_t>(counted);
}

/// Called on all stages, whether or not they have mixtures: losses are summed over the stages.
void TrainingStep::expect_routing() {
  if (stage_facts_.mixtures > 0 || job_.model.mtp.num_layers > 0)
    routing_.expect(context_, stage_facts_.mixtures, job_.model.moe.num_experts);
}

TrainingStep::PassInputs TrainingStep::inputs_of(const Batch& batch, std::int64_t micro_batch,
                                                 std::int64_t targets) {
  const std::int64_t first = first_sample_of(micro_batch);
  const auto scale =
      static_cast<float>(1.0 / static_cast<double>(std::max<std::int64_t>(targets, 1)));
  if (fixed_.tokens.defined()) {
    ops::copy(context_, batch.tokens, fixed_.tokens);
    ops::copy(context_, batch.targets, fixed_.targets);
    ops::write_scalar<std::int64_t>(context_, first, fixed_.first_sample);
    ops::write_scalar<float>(context_, scale, fixed_.grad_scale);
    return fixed_;
  }
  PassInputs inputs{batch.tokens, batch.targets, context_.empty(DType::i64, {1}),
                    context_.empty(DType::f32, {1})};
  ops::write_scalar<std::int64_t>(context_, first, inputs.first_sample);
  ops::write_scalar<float>(context_, scale, inputs.grad_scale);
  return inputs;
}

ForwardContext TrainingStep::forward_context(const PassInputs& inputs,
                                             std::int64_t micro_steps) const {
  ForwardContext context;
  context.training = true;
  context.seed = static_cast<std::uint64_t>(job_.trainer.seed);
  context.first_sample = inputs.first_sample;
  context.grad_scale = inputs.grad_scale;
  if (training_.packed()) context.packed_targets = inputs.targets;
  context.routers.loss_scale =
      static_cast<float>(1.0 / static_cast<double>(micro_steps * replicas()));
  return context;
}

void TrainingStep::pass_forward(const PipelineAction& action, const Batch& batch,
                                std::int64_t micro_steps, std::int64_t targets, Tensor& loss) {
  const PassInputs inputs = inputs_of(batch, action.micro_batch, targets);
  const Span span(*this, Section::forward);
  passes_->forward(action, {inputs.tokens, inputs.targets}, forward_context(inputs, micro_steps),
                   1.0f, loss);
}

void TrainingStep::pass_backward(const PipelineAction& action) {
  const Span span(*this, Section::backward);
  if (action.kind == PipelineAction::Kind::weights) return passes_->weights(action);
  const auto pass = passes_->backward(action);
  routing_.add(context_, pass->context);
}

void TrainingStep::begin_graphs() {
  const bool captures = context_.streams() != nullptr && context_.streams()->captures();
  if (!captures || job_.trainer.cuda_graphs != "auto") {
    for (RepeatedWork* work : {&passes_work_, &last_passes_work_, &update_work_})
      work->never_capture();
    return;
  }
  const auto keep = [this](std::initializer_list<RepeatedWork*> works, std::string_view name,
                           std::string_view why) {
    for (RepeatedWork* work : works) work->never_capture();
    graph_notes_.push_back(fmt::format("{} are not CUDA graphs: {}", name, why));
  };
  constexpr std::string_view kPasses = "passes of micro-batches";
  if (!passes_->one_by_one())
    keep({&passes_work_, &last_passes_work_}, kPasses,
         passes_->several_stages() ? "stages of a pipeline wait for each other"
                                   : "weights are gathered for each layer");
  else if (store_.tensor_group() != nullptr || layout_.context_group() != nullptr ||
           store_.expert_group() != nullptr)
    keep({&passes_work_, &last_passes_work_}, kPasses, "ranks exchange values in them");
  else
    fixed_ = {context_.empty(DType::i32, {batch_.micro_batch_size, job_.model.sequence_length}),
              context_.empty(DType::i32, {batch_.micro_batch_size, job_.model.sequence_length}),
              context_.empty(DType::i64, {1}), context_.empty(DType::f32, {1})};
  // Only one of the two runs at a time. Outside of both, the action is performed at once.
  const auto between = [this](std::function<void()> act) {
    (passes_work_.is_capturing() ? passes_work_ : last_passes_work_)
        .between(context_, std::move(act));
  };
  reducer_->set_between(between);
  gatherer_->set_between(
      [this] { return passes_work_.is_capturing() || last_passes_work_.is_capturing(); }, between);
}

std::vector<std::string> TrainingStep::take_graph_notes() {
  for (RepeatedWork* work : {&passes_work_, &last_passes_work_, &update_work_})
    if (const auto failure = work->take_failure()) graph_notes_.push_back(*failure);
  return std::exchange(graph_notes_, {});
}

Result<> TrainingStep::pass_one_by_one(std::int64_t micro_steps, std::vector<Batch> batches,
                                       std::int64_t targets, Tensor& loss) {
  using Kind = PipelineAction::Kind;
  store_.refresh_fp8_weights();
  for (std::int64_t micro = 0; micro < micro_steps; ++micro) {
    PassInputs inputs;
    {
      Batch batch;
      if (!batches.empty()) {
        batch = std::move(batches[static_cast<std::size_t>(micro)]);
      } else {
        SORTIE_ASSIGN_OR_RETURN(batch, next_batch(first_sample_of(micro)));
      }
      inputs = inputs_of(batch, micro, targets);
    }
    const bool last = micro + 1 == micro_steps;
    if (last) reducer_->begin();
    const auto passes = [&] {
      gatherer_->begin_pass();
      {
        const Span span(*this, Section::forward);
        passes_->forward({Kind::forward, micro, 0}, {inputs.tokens, inputs.targets},
                         forward_context(inputs, micro_steps), 1.0f, loss);
      }
      pass_backward({Kind::backward, micro, 0});
      if (last) store_.zero_unwritten_gradients();
    };
    // The gradients of the last micro-batch are reduced during its backward pass.
    const bool reduces = last && reducer_->reduces();
    RepeatedWork& work = reduces ? last_passes_work_ : passes_work_;
    const float router_scale = forward_context(inputs, micro_steps).routers.loss_scale;
    if (std::exchange(router_scale_, router_scale) != router_scale) {
      passes_work_.forget();
      last_passes_work_.forget();
    }
    std::optional<Span> span;  // otherwise passes have their own spans
    if (work.is_graph()) span.emplace(*this, Section::forward);
    const double choices = routing_.choices();
    const auto undo = [&] {
      passes_->drop_passes();
      routing_.count_choices(choices - routing_.choices());
      store_.gradients_zeroed();
      if (reduces) reducer_->begin();
    };
    if (work.run(context_, passes, undo) == RepeatedWork::Done::as_graph) {
      routing_.count_choices(choices_of_pass_);
      store_.gradients_written();
    } else {
      choices_of_pass_ = routing_.choices() - choices;
    }
  }
  return {};
}

Result<> TrainingStep::pass_all(std::int64_t micro_steps, std::vector<Batch> batches,
                                std::int64_t targets, Tensor& loss) {
  const std::vector<PipelineAction>& actions =
      passes_->begin_training(micro_steps, batch_.micro_batch_size * job_.model.sequence_length);
  if (passes_->one_by_one()) return pass_one_by_one(micro_steps, std::move(batches), targets, loss);
  // Every stage reads the samples: the first needs the tokens, the last the targets, and all of
  // them the ends of documents in the tokens.
  std::map<std::int64_t, Batch> open;  // by micro-step, until its last pass forward
  bool reduces = false;
  for (const PipelineAction& action : actions) {
    const bool forward = action.kind == PipelineAction::Kind::forward;
    if (forward && action.run == 0) {
      Batch& batch = open[action.micro_batch];
      if (!batches.empty()) {
        batch = std::move(batches[static_cast<std::size_t>(action.micro_batch)]);
      } else {
        SORTIE_ASSIGN_OR_RETURN(batch, next_batch(first_sample_of(action.micro_batch)));
      }
    }
    if (passes_->several_stages()) {
      const Span span(*this, Section::reduce);
      passes_->await(action);
    }
    if (forward) {
      pass_forward(action, open[action.micro_batch], micro_steps, targets, loss);
      if (passes_->last_of_stage(action)) open.erase(action.micro_batch);
      continue;
    }
    if (passes_->all_forward() && !reduces) {
      reducer_->begin();
      reduces = true;
    }
    pass_backward(action);
  }
  return {};
}
}  // namespace sortie::trainer
