#include "trainer/loop/training_step.h"

#include <algorithm>
#include <limits>

#include "common/config/mesh.h"
#include "trainer/loop/stream_progress.h"
#include "trainer/nn/shares.h"
#include "trainer/planning/fp8_rules.h"
#include "trainer/planning/part_parameters.h"
#include "trainer/random/random.h"
#include "trainer/tensor/device_module.h"

namespace sortie::trainer {
namespace {

using training::Section;

StepTrouble trouble_of(ops::GateReason reason) {
  switch (reason) {
    case ops::GateReason::none:
      return StepTrouble::none;
    case ops::GateReason::gradient_not_finite:
    case ops::GateReason::loss_not_finite:
      return StepTrouble::nonfinite;
    case ops::GateReason::loss_spike:
      return StepTrouble::spike;
    case ops::GateReason::loss_outlier:
    case ops::GateReason::norm_outlier:
      return StepTrouble::outlier;
  }
  SORTIE_CHECK(false, "an unknown reason");
}

}  // namespace

TrainingStep::TrainingStep(const config::JobConfig& job, const config::BatchPlan& batch,
                           const RankContext& rank, const Layout& layout, SampleSource& training)
    : job_(job),
      batch_(batch),
      layout_(layout),
      marks_(*rank.marks),
      training_(training),
      context_(rank.threads, rank.compute.device),
      store_(layout.tensor_group(), layout.expert_group()),
      model_(context_, job.model, store_,
             job.topology.activation_checkpointing_type == "every_layer",
             part_of_stage(job, layout.coordinate(Axis::pipeline))),
      optimizer_(job, store_),
      gate_(job),
      fp8_histories_(layout, store_),
      profiler_(job.profiler, rank.rank) {
  follow_stream(marks_, context_);
}

TrainingStep::~TrainingStep() {
  marks_.unfollow();
  if (in_flight_.empty() || context_.device().kind != DeviceKind::cuda) return;
  try {  // a GPU still writes to memory that would be reused
    context_.synchronize();
  } catch (const DeviceError&) {  // the device does nothing any more
  }
}

Result<> TrainingStep::prepare() {
  SORTIE_TRY(check_fp8_rows(job_, batch_.micro_batch_size));
  SORTIE_ASSIGN_OR_RETURN(stage_facts_,
                          prepare_parameters(job_, model_.part(), store_, optimizer_));
  store_.share(share_rules(job_, layout_));
  SORTIE_TRY(optimizer_.prepare(layout_));
  // With one micro-batch each copy is used once. Gathered weights are released.
  context_.keep_packed_weights(batch_.gradient_accumulation_steps > 1 && !store_.gathers());
  return store_.cut(layout_.places());
}

void TrainingStep::allocate(DType precision) {
  store_.finalize(context_, precision, layout_.replicas().size() * kLineElements,
                  /*with_optimizer=*/true);
  optimizer_.begin(context_, layout_);
  gate_.allocate(context_);
  reducer_ = std::make_unique<GradientReducer>(
      store_, layout_.replicas(), job_.optimizer.allreduce_bucket_size, &layout_.expert_replicas());
  // Only where the host's times are those of the work.
  if (job_.profiler.profile_steps > 0 && !context_.runs_beside_host())
    reducer_->set_on_reduced([this](std::size_t bucket, auto begun, auto complete) {
      const auto [begin, end] = reducer_->bucket(bucket);
      profiler_.add_reduction((end - begin) * static_cast<std::int64_t>(sizeof(float)), begun,
                              complete);
    });
  gatherer_ =
      std::make_unique<WeightGatherer>(store_, layout_.replicas(), &layout_.expert_replicas());
  passes_ = std::make_unique<PipelineStep>(context_, layout_, store_, model_, stage_facts_,
                                           config::has_zero_bubble(job_.topology));
  // With several micro-batches the later ones add to what the first has left.
  const bool one_pass = batch_.gradient_accumulation_steps == 1 && batch_.rampup_share == 0;
  if (one_pass && passes_->one_by_one() && context_.runs_beside_host()) store_.keep_old_gradients();
  optimizer_.set_between([this](std::function<void()> act) {
    update_work_.between(context_, [this, act = std::move(act)] {
      marks_.enter(Section::reduce);
      act();
      marks_.enter(Section::optimizer);
    });
  });
  begin_graphs();
  context_.set_poll([this] {
    reducer_->poll();
    gatherer_->poll();
    passes_->poll();
    if (layout_.expert_group() != nullptr) layout_.expert_group()->poll();
    if (layout_.tensor_group() != nullptr) layout_.tensor_group()->poll();
  });
}

void TrainingStep::spread_weights() {
  passes_->forget_weights();
  gatherer_->start_all();
  gatherer_->finish();
}

void TrainingStep::rehearse() {
  const Shape shape{batch_.micro_batch_size, job_.model.sequence_length};
  // A GPU multiplies equal rows with less power, and so faster, than the rows of a text.
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::int32_t>(random_bits(1, i) %
                                          static_cast<std::uint64_t>(job_.model.vocab_size));
  Batch batch;
  batch.tokens = batch.targets = ops::tensor_from_host<std::int32_t>(context_, tokens, shape);
  Tensor loss = context_.zeros(DType::f64, {2});
  expect_routing();
  std::optional<Allocator::RepeatedMemory> memory;  // that of the steps
  if (passes_->one_by_one()) memory.emplace(context_.allocator());
  // Interleaved stages take micro-batches in groups of as many as there are stages.
  const std::int64_t micro_batches =
      job_.topology.pipeline_interleave > 1 ? job_.topology.pipeline_parallel_size : 1;
  for (const PipelineAction& action : passes_->begin_training(micro_batches, shape.elements())) {
    if (passes_->several_stages()) passes_->await(action);
    if (action.kind == PipelineAction::Kind::forward)
      pass_forward(action, batch, micro_batches, micro_batches * shape.elements(), loss);
    else if (action.kind == PipelineAction::Kind::backward)
      (void)passes_->backward(action);
    else
      passes_->weights(action);
  }
  memory.reset();
  passes_->finish();
  routing_.clear(context_);
  store_.zero_gradients();
  fp8_histories_.forget(context_);
  context_.synchronize();
}

void TrainingStep::resume(const TrainingProgress& progress) {
  gate_.resume(
      context_,
      {.updates = progress.updates, .losses = progress.losses, .norms = progress.gradient_norms});
}

std::int64_t TrainingStep::consumed(const TrainingProgress& progress) const {
  std::int64_t samples = progress.consumed_samples;
  for (const InFlight& step : in_flight_) samples += step.report.samples;
  return samples;
}

void TrainingStep::begin_reading(const TrainingProgress& progress) {
  begin_reading_at(position_after(progress),
                   config::samples_of_steps(batch_, job_.trainer.train_iterations) +
                       skipped_before(skipped_, std::numeric_limits<std::int64_t>::max()));
}

void TrainingStep::begin_reading_at(std::int64_t position, std::int64_t end) {
  position_ = read_position_ = position;
  prefetcher_.reset();  // destroy the old one first: a source has one reader
  ReadingCourse course;
  course.first = first_sample_of(0);
  // A step is a whole number of micro-steps, so the distance is the same within steps and between.
  course.stride = replicas() * batch_.micro_batch_size;
  course.rows = batch_.micro_batch_size;
  course.length = job_.model.sequence_length;
  course.end = end;
  // If targets are counted first, a step takes all of its micro-batches at once.
  constexpr std::int64_t kAhead = 4;
  course.ahead = static_cast<std::size_t>(
      training_.masks_targets() ? batch_.gradient_accumulation_steps + kAhead : kAhead);
  prefetcher_ = std::make_unique<Prefetcher>(training_, course);
}

/// Sums the loss and the flags over all ranks. If reading would wait for the device, the host sums
/// the flags separately. `values` has room for the flags, then the sums.
Communicator::Handle TrainingStep::agree(Tensor values, const TellFlags& tell, Flags flags) {
  const auto room = static_cast<std::int64_t>(flags.size());
  Tensor loss = values.slice(0, room + kLoss, 1), told = values.slice(0, 0, room);
  if (!layout_.speaks()) ops::fill(context_, 0.0, loss);
  tell(flags);
  const bool by_host = context_.runs_beside_host();
  if (by_host)
    layout_.world().all_reduce_sum(flags);
  else
    ops::copy_from_host<double>(context_, flags, told);
  Communicator::Handle summed = layout_.world().all_reduce_async(
      by_host ? loss : values.slice(0, 0, room + 1), ReduceOp::sum, context_.record());
  summed->wait_on(context_);
  return summed;
}

/// Sums the values that the routers' biases depend on over the ranks, in place. Adds the other
/// losses and the dropped choices, which are a part of them, to `losses`, f64 [3].
void TrainingStep::sum_routing(Tensor& losses) {
  if (!routing_.any()) return;
  const auto sum = [&](Communicator& group, const Tensor& values) {
    group.all_reduce_async(values, ReduceOp::sum, context_.record())->wait_on(context_);
  };
  const Tensor sums = routing_.sums(), own_losses = sums.slice(0, 0, 3);
  sum(layout_.replicas(), sums);
  sum(layout_.pipeline(), own_losses);  // each stage has its own losses
  ops::accumulate(context_, own_losses, losses);
}

/// Number of choices of the routers of all ranks; 0 if experts have no capacity. Known without the
/// device.
double TrainingStep::count_choices() {
  if (!routing_.any() || job_.model.moe.capacity_factor <= 0) return 0.0;
  double choices = routing_.choices();  // of the mixtures of this rank's stage
  layout_.replicas().all_reduce_sum({&choices, 1});
  layout_.pipeline().all_reduce_sum({&choices, 1});
  return std::max(choices, 1.0);
}

void TrainingStep::update(std::int64_t step, double rate) {
  const Span span(*this, Section::optimizer);
  gatherer_->finish();  // gathers that this step did not use
  passes_->forget_weights();
  fp8_histories_.roll(context_);
  optimizer_.set_step(context_, step, rate);
  const auto update = [this] {
    optimizer_.apply(context_, gate_.gate(), [this](std::size_t bucket) {
      update_work_.between(context_, [this, bucket] { gatherer_->start(bucket); });
    });
    if (job_.model.moe.bias_update_rate > 0)
      routing_.balance(store_, gate_.gate(), job_.model.moe.bias_update_rate);
    store_.zero_gradients();
  };
  if (update_work_.run(context_, update) == RepeatedWork::Done::as_graph) {
    store_.weights_changed();
    store_.gradients_zeroed();
  }
  routing_.clear(context_);
  passes_->gather_ahead();
}

/// Returns the mean loss over all sites, and replaces the gradients in the store by those of all
/// sites.
Result<double> TrainingStep::sum_over_sites(const StepOrder& order, const Tensor& loss,
                                            std::int64_t targets) {
  const Span span(*this, Section::reduce);
  double sum = layout_.speaks() ? ops::copy_to_host<double>(context_, loss)[0] : 0.0;
  layout_.world().all_reduce_sum({&sum, 1});
  auto mean =
      order.sum_over_sites(sum / static_cast<double>(std::max<std::int64_t>(targets, 1)), targets);
  if (!mean) {
    routing_.clear(context_);
    store_.zero_gradients();
  }
  return mean;
}

Result<StepReport*> TrainingStep::begin(const TrainingProgress& progress, const TellFlags& tell,
                                        Flags flags, const StepOrder* order) {
  InFlight step;
  StepReport& report = step.report;
  report.step = order != nullptr ? order->step : last_begun(progress) + 1;
  const double rate = order != nullptr ? order->rate : 1.0;
  report.learning_rate = rate * optimizer_.learning_rate(report.step);
  report.samples = config::batch_size_at(batch_, consumed(progress));
  report.tokens = report.samples * job_.model.sequence_length;
  const std::int64_t micro_steps = report.samples / (batch_.micro_batch_size * replicas());
  profiler_.begin_step(report.step);
  marks_.begin_step(report.step);
  position_ = order != nullptr ? order->first_sample : position_after(progress);
  if (!prefetcher_ || position_ != read_position_) {
    if (order != nullptr)
      begin_reading_at(position_, order->end_sample);
    else
      begin_reading(progress);
  }
  read_position_ = report.next_sample = position_ + report.samples;

  std::vector<Batch> batches;
  SORTIE_ASSIGN_OR_RETURN(const std::int64_t targets, count_targets(micro_steps, batches));
  // What the host reads of the step, at once: the flags, the sums, and the outcome of the gate.
  const auto room = static_cast<std::int64_t>(flags.size());
  const std::int64_t all = room + kSums + ops::kGateOutcomeValues;
  if (!values_.defined() || values_.elements() != all) {
    values_ = context_.empty(DType::f64, {all});
    passes_work_.forget();
    last_passes_work_.forget();
  }
  const Tensor values = values_;
  ops::fill(context_, 0.0, values_);
  Tensor loss = values.slice(0, room + kLoss, 2);
  Tensor squared_norm = values.slice(0, room + kSquaredNorm, 1);
  Tensor other_losses = values.slice(0, room + kOtherLosses, 3);
  Tensor outcome = values.slice(0, room + kSums, ops::kGateOutcomeValues);
  expect_routing();
  SORTIE_TRY(pass_all(micro_steps, std::move(batches), targets, loss));
  {
    const Span span(*this, Section::reduce);
    passes_->finish();
    reducer_->finish();
    sum_partial_gradients(store_, layout_.tensor_group());
  }
  std::optional<double> loss_of_sites;
  if (order != nullptr && order->sum_over_sites) {
    SORTIE_ASSIGN_OR_RETURN(loss_of_sites, sum_over_sites(*order, loss, targets));
  }
  {
    const Span span(*this, Section::optimizer);
    optimizer_.squared_gradient_norm(context_, layout_, squared_norm);
  }
  {
    const Span span(*this, Section::reduce);
    sum_routing(other_losses);
    step.routed = routing_.any();
    step.choices = count_choices();
    optimizer_.sum_squared_norms(context_, layout_, squared_norm);
    step.summed = agree(values, tell, flags);
  }
  step.micro_steps = micro_steps;
  step.targets = std::max<std::int64_t>(targets, 1);
  Tensor loss_sum = values.slice(0, room + kLoss, 1);
  ops::GateStep facts{.loss_count = static_cast<double>(step.targets),
                      .norm_weight = optimizer_.norm_weight(layout_)};
  if (loss_of_sites) {
    ops::fill(context_, *loss_of_sites, loss_sum);
    facts.loss_count = 1.0;
  }
  gate_.decide(context_, facts, loss_sum, squared_norm, outcome);
  step.values = ops::begin_copy_to_host<double>(context_, values);
  if (!context_.runs_beside_host())
    std::ranges::copy(step.values.wait().first(flags.size()), flags.begin());
  update_under_way_ = true;
  update(report.step, rate);
  report.data_seconds = prefetcher_->take_waited_seconds();
  in_flight_.push_back(std::move(step));
  update_under_way_ = false;
  return &in_flight_.back().report;
}

StepReport TrainingStep::settle(TrainingProgress& progress) {
  SORTIE_CHECK(!in_flight_.empty(), "no step is in flight");
  InFlight& step = in_flight_.front();
  StepReport& report = step.report;
  {
    std::optional<Span> span;  // otherwise there is no wait
    if (context_.runs_beside_host()) span.emplace(*this, Section::reduce);
    step.summed->wait();  // notices peers that are lost
    const auto values = step.values.wait();
    const auto sums = values.subspan(values.size() - ops::kGateOutcomeValues - kSums);
    const ops::GateOutcome outcome = ops::gate_outcome(sums.subspan(kSums));
    report.loss = outcome.loss;
    report.grad_norm = outcome.norm;
    report.trouble = trouble_of(outcome.reason);
    report.skipped = report.trouble != StepTrouble::none;
    report.skip_reason = gate_.reason(
        outcome, {.updates = 0, .losses = progress.losses, .norms = progress.gradient_norms});
    if (step.routed) {
      report.balance_loss = sums[kOtherLosses] / static_cast<double>(step.micro_steps * replicas());
      report.mtp_loss = sums[kOtherLosses + 1] / static_cast<double>(step.targets);
      if (step.choices > 0) report.dropped_choices = sums[kOtherLosses + 2] / step.choices;
    }
    progress.updates = outcome.state.updates;
    progress.losses = outcome.state.losses;
    progress.gradient_norms = outcome.state.norms;
  }
  progress.step = report.step;
  progress.loss = report.loss;
  progress.consumed_samples += report.samples;
  progress.consecutive_skips = report.skipped ? progress.consecutive_skips + 1 : 0;
  if (report.trouble == StepTrouble::spike)
    progress.suspect_steps = kSuspectSteps;
  else if (progress.suspect_steps > 0 && !report.skipped)
    --progress.suspect_steps;
  StepReport settled = std::move(report);
  in_flight_.pop_front();
  return settled;
}

bool TrainingStep::drop_in_flight() {
  gatherer_->finish();
  context_.synchronize();
  const bool to_save = std::ranges::any_of(
      in_flight_, [](const InFlight& step) { return step.report.save_requested; });
  in_flight_.clear();
  return to_save;
}

}  // namespace sortie::trainer
