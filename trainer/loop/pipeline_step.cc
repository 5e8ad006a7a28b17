#include "trainer/loop/pipeline_step.h"

#include "common/base/check.h"

namespace sortie::trainer {
namespace {

using Kind = PipelineAction::Kind;

}  // namespace

PipelineStep::PipelineStep(ExecutionContext& context, const Layout& layout, ParameterStore& store,
                           const LanguageModel& model, StageFacts facts, bool zero_bubble)
    : context_(context),
      store_(store),
      model_(model),
      stage_(layout.coordinate(Axis::pipeline)),
      sharers_(layout.context_group()),
      facts_(std::move(facts)),
      exchange_(layout.size(Axis::pipeline) > 1
                    ? std::make_unique<StageExchange>(context, layout.pipeline())
                    : nullptr),
      tied_(store, model.shared_table(), layout.pipeline(),
            exchange_ ? &exchange_->lines() : nullptr) {
  if (store.gathers()) gatherer_.emplace(store, layout.replicas());
  shape_.stages = layout.size(Axis::pipeline);
  shape_.interleave = static_cast<int>(model.part().runs.size());
  shape_.zero_bubble = zero_bubble;
}

const std::vector<PipelineAction>& PipelineStep::begin(
    StageExchange::Pass pass, std::int64_t micro_batches,
    std::function<std::int64_t(std::int64_t micro_batch)> rows) {
  SORTIE_CHECK(passes_.empty() && weights_left_.empty(), "{} passes of the last step are open",
               passes_.size() + weights_left_.size());
  const bool trains = pass == StageExchange::Pass::training;
  kind_ = pass;
  shape_.micro_batches = micro_batches;
  actions_ = trains ? training_schedule(shape_, stage_) : forward_schedule(shape_, stage_);
  forward_left_ = micro_batches * shape_.interleave;
  if (gatherer_) gatherer_->begin(trains, micro_batches);
  if (!exchange_) return actions_;
  StageExchange::Form form;
  form.dtype = store_.compute_dtype();
  form.width = model_.shape().hidden;
  // Each of the ranks that share tokens sends its own rows to its counterpart.
  const TensorGroup* group = store_.tensor_group();
  const std::int64_t shares =
      (shares_rows(group) ? group->size() : 1) * (sharers_ != nullptr ? sharers_->size() : 1);
  form.rows = [rows = std::move(rows), shares](std::int64_t micro_batch) {
    return rows(micro_batch) / shares;
  };
  form.first_trained_run = facts_.first_trained_run;
  if (trains) {
    form.forward_sums = 2 * facts_.balanced_experts;
    form.backward_sums = facts_.balanced_experts;
  }
  exchange_->begin(shape_, pass, std::move(form));
  return actions_;
}

const std::vector<PipelineAction>& PipelineStep::begin_training(std::int64_t micro_batches,
                                                                std::int64_t rows) {
  tied_.hold();
  return begin(StageExchange::Pass::training, micro_batches, [rows](std::int64_t) { return rows; });
}

const std::vector<PipelineAction>& PipelineStep::begin_forward(
    std::int64_t micro_batches, std::function<std::int64_t(std::int64_t micro_batch)> rows) {
  return begin(StageExchange::Pass::forward_only, micro_batches, std::move(rows));
}

void PipelineStep::await(const PipelineAction& action) {
  if (!exchange_ || action.kind == Kind::weights) return;
  const bool receives =
      action.kind == Kind::forward ? !first_run(action.run) : exchange_->takes_gradient(action.run);
  if (receives) arrived_ = exchange_->take(action);
}

/// The load of the experts is balanced over the mixtures of all layers: the sums of the routers of
/// earlier runs are sent forward with the hidden state, and the complete sums backward with its
/// gradient.
void PipelineStep::balance_over_stages(Pass& pass, const PipelineAction& action, Tensor sums,
                                       double tokens) {
  const std::int64_t experts = facts_.balanced_experts;
  if (experts == 0 || kind_ != StageExchange::Pass::training) return;
  RouterPass& routers = pass.context.routers;
  if (action.kind == Kind::backward) {
    if (!sums.defined()) return;
    routers.assigned = std::move(sums);
    routers.rows = static_cast<double>(facts_.mixtures) * tokens;
    return;
  }
  pass.sums = sums.defined() ? std::move(sums) : context_.zeros(DType::f64, {2 * experts});
  routers.assigned = pass.sums.slice(0, 0, experts);
  routers.scores = pass.sums.slice(0, experts, experts);
  const std::int64_t before = facts_.mixtures_before.at(static_cast<std::size_t>(action.run));
  routers.rows = static_cast<double>(before) * tokens;
}

void PipelineStep::forward(const PipelineAction& action, const MicroBatch& batch,
                           const ForwardContext& context, float grad_scale, Tensor& loss) {
  const bool trains = kind_ == StageExchange::Pass::training;
  auto pass =
      std::make_unique<Pass>(context_, trains ? Graph::Mode::record : Graph::Mode::inference);
  if (trains && shape_.zero_bubble) pass->graph.leave_weight_gradients();
  pass->context = context;
  pass->context.group = pass->context.routers.group = sharers_;
  StageParcel parcel = std::move(arrived_);
  arrived_ = {};
  balance_over_stages(*pass, action, std::move(parcel.sums),
                      static_cast<double>(batch.tokens.elements()));
  Hidden in;
  if (!first_run(action.run)) {
    in.residual = pass->graph.value(std::move(parcel.hidden));
    pass->in = in.residual.grad;
    pass->graph.set_flows(exchange_->gives_gradient(action.run));
  }
  Hidden out = model_.run_layers(pass->graph, static_cast<std::size_t>(action.run), batch.tokens,
                                 in, pass->context);
  in = {};
  --forward_left_;
  if (last_run(action.run)) {
    model_.finish_loss(pass->graph, std::move(out), batch.tokens, batch.targets, grad_scale,
                       pass->context, loss);
  } else {
    exchange_->send(action, {out.residual.data, pass->sums});
    pass->out = std::move(out.residual);
    pass->out.data = {};
  }
  if (trains) passes_[{action.micro_batch, action.run}] = std::move(pass);
}

std::unique_ptr<PipelineStep::Pass> PipelineStep::backward(const PipelineAction& action) {
  const auto found = passes_.find({action.micro_batch, action.run});
  SORTIE_CHECK(found != passes_.end(), "micro-batch {} has not been through run {}",
               action.micro_batch, action.run);
  std::unique_ptr<Pass> pass = std::move(found->second);
  passes_.erase(found);
  StageParcel parcel = std::move(arrived_);
  arrived_ = {};
  const double tokens = static_cast<double>(pass->context.batch * pass->context.whole_tokens());
  // The previous stage waits for it, so it is sent before the remaining weight gradients are
  // computed.
  const auto send_gradient = [&] {
    if (pass->in && exchange_->gives_gradient(action.run))
      exchange_->send(action, {std::move(pass->in->tensor), pass->context.routers.assigned});
  };
  if (last_run(action.run)) {
    pass->graph.backward({}, send_gradient);
  } else {
    balance_over_stages(*pass, action, std::move(parcel.sums), tokens);
    pass->graph.backward({{std::move(pass->out), std::move(parcel.hidden)}}, send_gradient);
  }
  if (shape_.zero_bubble) weights_left_[action.micro_batch] = pass->graph.take_weight_gradients();
  return pass;
}

void PipelineStep::drop_passes() {
  SORTIE_CHECK(one_by_one(), "passes that others wait for are dropped");
  passes_.clear();
  store_.forget_uses();
}

void PipelineStep::weights(const PipelineAction& action) {
  const auto found = weights_left_.find(action.micro_batch);
  SORTIE_CHECK(found != weights_left_.end(), "micro-batch {} has not been back",
               action.micro_batch);
  std::deque<std::function<void()>> left = std::move(found->second);
  weights_left_.erase(found);
  for (; !left.empty(); left.pop_front()) {  // frees what the gradient had saved
    left.front()();
    context_.poll();
  }
}

void PipelineStep::finish() {
  if (gatherer_) gatherer_->finish();
  if (kind_ == StageExchange::Pass::training) tied_.add_other();
  if (exchange_) exchange_->finish();
}

}  // namespace sortie::trainer
