#include "trainer/loop/training_step.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "common/base/elapsed.h"
#include "common/config/mesh.h"
#include "trainer/ops/copy.h"
#include "trainer/planning/part_parameters.h"
#include "trainer/random/random.h"

namespace sortie::trainer {
namespace {

using Clock = std::chrono::steady_clock;
using Part = training::Section;

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
      losses_(job.optimizer.skip_loss_zscore, job.optimizer.outlier_window),
      gradient_norms_(job.optimizer.skip_gradient_norm_zscore, job.optimizer.outlier_window),
      profiler_(job.profiler, rank.rank) {}

Result<> TrainingStep::prepare() {
  SORTIE_ASSIGN_OR_RETURN(stage_facts_,
                          prepare_parameters(job_, model_.part(), store_, optimizer_));
  store_.share(share_rules(job_, layout_));
  SORTIE_TRY(optimizer_.prepare(context_, layout_));
  // One micro-batch uses each copy once, and what is gathered is let go.
  context_.keep_packed_weights(batch_.gradient_accumulation_steps > 1 && !store_.gathers());
  return store_.cut(layout_.places());
}

void TrainingStep::allocate(DType precision) {
  constexpr std::int64_t kShardUnit = 16;  // f32 elements of a cache line
  store_.finalize(context_, precision, layout_.replicas().size() * kShardUnit,
                  /*with_optimizer=*/true);
  optimizer_.begin(context_, layout_);
  reducer_ = std::make_unique<GradientReducer>(
      store_, layout_.replicas(), job_.optimizer.allreduce_bucket_size, &layout_.expert_replicas());
  gatherer_ =
      std::make_unique<WeightGatherer>(store_, layout_.replicas(), &layout_.expert_replicas());
  passes_ = std::make_unique<PipelineStep>(context_, layout_, store_, model_, stage_facts_,
                                           config::has_zero_bubble(job_.topology));
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
  // A GPU multiplies equal rows with less power, and so faster, than those of a text.
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::int32_t>(random_bits(1, i) %
                                          static_cast<std::uint64_t>(job_.model.vocab_size));
  Batch batch;
  batch.tokens = batch.targets = ops::tensor_from_host<std::int32_t>(context_, tokens, shape);
  Tensor loss = context_.zeros(DType::f64, {2});
  expect_routing();
  for (const PipelineAction& action : passes_->begin_training(1, shape.elements())) {
    if (passes_->several_stages()) passes_->await(action);
    if (action.kind == PipelineAction::Kind::forward)
      pass_forward(action, batch, 1, shape.elements(), loss);
    else if (action.kind == PipelineAction::Kind::backward)
      (void)passes_->backward(action);
    else
      passes_->weights(action);
  }
  passes_->finish();
  routing_.clear(context_);
  store_.zero_gradients();
  context_.synchronize();
}

void TrainingStep::resume(const TrainingProgress& progress) {
  optimizer_.set_updates(progress.updates);
  losses_.set_state(progress.losses);
  gradient_norms_.set_state(progress.gradient_norms);
}

void TrainingStep::begin_reading(const TrainingProgress& progress) {
  begin_reading_at(position_after(progress),
                   config::samples_of_steps(batch_, job_.trainer.train_iterations) +
                       skipped_before(skipped_, std::numeric_limits<std::int64_t>::max()));
}

void TrainingStep::begin_reading_at(std::int64_t position, std::int64_t end) {
  position_ = read_position_ = position;
  prefetcher_.reset();  // of the old one, before there is a new one: a source has one reader
  ReadingCourse course;
  course.first = first_sample_of(0);
  // A step is a whole number of micro-steps, so the distance is the same within steps and between.
  course.stride = replicas() * batch_.micro_batch_size;
  course.rows = batch_.micro_batch_size;
  course.length = job_.model.sequence_length;
  course.end = end;
  // Where targets are counted first, a step takes all of its micro-batches at once.
  constexpr std::int64_t kAhead = 4;
  course.ahead = static_cast<std::size_t>(
      training_.masks_targets() ? batch_.gradient_accumulation_steps + kAhead : kAhead);
  prefetcher_ = std::make_unique<Prefetcher>(training_, course);
}

Result<TrainingStep::Batch> TrainingStep::next_batch(std::int64_t first_sample) {
  const Span span(*this, Part::data);
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
  marks_.enter(Part::reduce);
  if (layout_.coordinate(Axis::context) > 0) counted = 0.0;  // ranks that share samples count alike
  layout_.replicas().all_reduce_sum({&counted, 1});
  return static_cast<std::int64_t>(counted);
}

/// On all stages alike, whichever of them have mixtures: their losses are summed over the stages.
void TrainingStep::expect_routing() {
  if (!passes_->several_stages()) return;
  if (stage_facts_.mixtures > 0 || job_.model.mtp.num_layers > 0)
    routing_.expect(context_, stage_facts_.mixtures, job_.model.moe.num_experts);
}

void TrainingStep::pass_forward(const PipelineAction& action, const Batch& batch,
                                std::int64_t micro_steps, std::int64_t targets, Tensor& loss) {
  ForwardContext context;
  context.training = true;
  context.seed = static_cast<std::uint64_t>(job_.trainer.seed);
  context.first_sample = first_sample_of(action.micro_batch);
  context.routers.loss_scale =
      static_cast<float>(1.0 / static_cast<double>(micro_steps * replicas()));
  const Span span(*this, Part::forward);
  const auto scale =
      static_cast<float>(1.0 / static_cast<double>(std::max<std::int64_t>(targets, 1)));
  passes_->forward(action, {batch.tokens, batch.targets}, context, scale, loss);
}

void TrainingStep::pass_backward(const PipelineAction& action) {
  const Span span(*this, Part::backward);
  if (action.kind == PipelineAction::Kind::weights) return passes_->weights(action);
  const auto pass = passes_->backward(action);
  routing_.add(context_, pass->context);
}

Result<> TrainingStep::pass_all(std::int64_t micro_steps, std::vector<Batch> batches,
                                std::int64_t targets, Tensor& loss) {
  // Every stage reads the samples: the first needs the tokens, the last the targets, and all of
  // them the documents that the tokens end.
  std::map<std::int64_t, Batch> open;  // by micro-step, until its last pass forward
  bool reduces = false;
  for (const PipelineAction& action :
       passes_->begin_training(micro_steps, batch_.micro_batch_size * job_.model.sequence_length)) {
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
      const Span span(*this, Part::reduce);
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

/// What every rank must know alike: the loss, and what they tell each other beside it.
void TrainingStep::agree(StepReport& report, double loss_sum, std::int64_t targets, Flags flags) {
  std::vector<double> sums = {layout_.speaks() ? loss_sum : 0.0};
  sums.insert(sums.end(), flags.begin(), flags.end());
  layout_.world().all_reduce_sum(sums);
  report.loss = sums[0] / static_cast<double>(std::max<std::int64_t>(targets, 1));
  std::copy(sums.begin() + 1, sums.end(), flags.begin());
}

/// Sums what the routers' biases go by over all ranks, where it lies; the losses beside the loss
/// and the dropped choices, which are a part of it, are added to `losses` f64 [3]. What is in
/// flight is over when the host has read these.
std::vector<Communicator::Handle> TrainingStep::sum_routing(Tensor& losses) {
  std::vector<Communicator::Handle> in_flight;
  if (!routing_.any()) return in_flight;
  const auto sum = [&](Communicator& group, const Tensor& values) {
    in_flight.push_back(group.all_reduce_async(values, ReduceOp::sum, context_.record()));
    in_flight.back()->wait_on(context_);
  };
  const Tensor sums = routing_.sums(), own_losses = sums.slice(0, 0, 3);
  sum(layout_.replicas(), sums);
  sum(layout_.pipeline(), own_losses);  // losses arise on their own stages
  ops::accumulate(context_, own_losses, losses);
  return in_flight;
}

/// So many times the running mean of those before it. Few values have no mean worth the name.
bool TrainingStep::is_spike(double loss) const {
  constexpr std::int64_t kFewest = 8;
  const OutlierState& seen = losses_.state();
  return job_.trainer.on_loss_spike != "ignore" &&
         seen.count >= std::min(kFewest, job_.optimizer.outlier_window) && seen.mean > 0 &&
         loss > job_.trainer.loss_spike_ratio * seen.mean;
}

/// By values that all ranks have alike.
TrainingStep::Judgement TrainingStep::judge(const StepReport& report) const {
  if (!std::isfinite(report.grad_norm)) return {StepTrouble::nonfinite, "gradients are not finite"};
  if (!std::isfinite(report.loss)) return {StepTrouble::nonfinite, "the loss is not finite"};
  if (is_spike(report.loss))
    return {StepTrouble::spike,
            fmt::format("the loss of {:.4g} is {:.1f} times its mean of {:.4g}", report.loss,
                        report.loss / losses_.state().mean, losses_.state().mean)};
  const auto far = [](const char* what, double value, const OutlierDetector& seen) {
    return fmt::format("the {} of {:.4g} is {:.1f} deviations above its mean of {:.4g}", what,
                       value, seen.deviations(value), seen.state().mean);
  };
  if (losses_.stands_out(report.loss))
    return {StepTrouble::outlier, far("loss", report.loss, losses_)};
  if (gradient_norms_.stands_out(report.grad_norm))
    return {StepTrouble::outlier, far("gradient norm", report.grad_norm, gradient_norms_)};
  return {};
}

void TrainingStep::update(StepReport& report, double rate) {
  const Span span(*this, Part::optimizer);
  auto [trouble, reason] = judge(report);
  report.trouble = trouble;
  report.skip_reason = std::move(reason);
  report.skipped = trouble != StepTrouble::none;
  // A spike counts as the largest value that is none.
  losses_.add(trouble == StepTrouble::spike ? job_.trainer.loss_spike_ratio * losses_.state().mean
                                            : report.loss);
  gradient_norms_.add(report.grad_norm);
  if (!report.skipped) {
    gatherer_->finish();  // of what this step had no use for
    passes_->forget_weights();
    optimizer_.update(context_, report.step, report.grad_norm, rate,
                      [this](std::size_t bucket) { gatherer_->start(bucket); });
    if (job_.model.moe.bias_update_rate > 0)
      routing_.balance(store_, job_.model.moe.bias_update_rate);
  }
  routing_.clear(context_);
  store_.zero_gradients();
  passes_->gather_ahead();
}

/// The mean loss over all sites; their gradients are then those of the store.
Result<double> TrainingStep::sum_over_sites(const StepOrder& order, const Tensor& loss,
                                            std::int64_t targets) {
  const Span span(*this, Part::reduce);
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

Result<StepReport> TrainingStep::take(TrainingProgress& progress, const TellFlags& tell,
                                      Flags flags, const StepOrder* order) {
  StepReport report;
  report.step = order != nullptr ? order->step : progress.step + 1;
  const double rate = order != nullptr ? order->rate : 1.0;
  report.learning_rate = rate * optimizer_.learning_rate(report.step);
  report.samples = config::batch_size_at(batch_, progress.consumed_samples);
  report.tokens = report.samples * job_.model.sequence_length;
  const std::int64_t micro_steps = report.samples / (batch_.micro_batch_size * replicas());
  const auto begin = Clock::now();
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
  // What the host has to know of the step: loss, counted targets, squared norm, losses beside the
  // loss, dropped choices. Read once: it waits for the device for nothing else.
  const Tensor sums = context_.zeros(DType::f64, {6});
  Tensor loss = sums.slice(0, 0, 2), squared_norm = sums.slice(0, 2, 1);
  Tensor other_losses = sums.slice(0, 3, 3);
  expect_routing();
  SORTIE_TRY(pass_all(micro_steps, std::move(batches), targets, loss));
  {
    const Span span(*this, Part::reduce);
    passes_->finish();
    reducer_->finish();
    sum_partial_gradients(store_, layout_.tensor_group());
  }
  std::optional<double> loss_of_sites;
  if (order != nullptr && order->sum_over_sites) {
    SORTIE_ASSIGN_OR_RETURN(loss_of_sites, sum_over_sites(*order, loss, targets));
  }
  {
    const Span span(*this, Part::optimizer);
    optimizer_.squared_gradient_norm(context_, layout_, squared_norm);
  }
  {
    const Span span(*this, Part::reduce);
    std::vector<Communicator::Handle> routing_sums = sum_routing(other_losses);
    const std::vector<double> read = ops::copy_to_host<double>(context_, sums);
    routing_sums.clear();
    report.grad_norm = optimizer_.gradient_norm(layout_, read[2]);
    tell(seconds_since(begin), flags);
    agree(report, read[0], targets, flags);
    if (loss_of_sites) report.loss = *loss_of_sites;
    if (routing_.any()) {
      report.balance_loss = read[3] / static_cast<double>(micro_steps * replicas());
      report.mtp_loss = read[4] / static_cast<double>(std::max<std::int64_t>(targets, 1));
      if (job_.model.moe.capacity_factor > 0) {
        double choices = routing_.choices();  // of the mixtures of this rank's stage
        layout_.replicas().all_reduce_sum({&choices, 1});
        layout_.pipeline().all_reduce_sum({&choices, 1});
        report.dropped_choices = read[5] / std::max(choices, 1.0);
      }
    }
  }
  update_under_way_ = true;
  update(report, rate);
  report.data_seconds = prefetcher_->take_waited_seconds();
  progress.step = report.step;
  progress.loss = report.loss;
  progress.consumed_samples += report.samples;
  progress.updates = optimizer_.updates();
  progress.consecutive_skips = report.skipped ? progress.consecutive_skips + 1 : 0;
  progress.losses = losses_.state();
  progress.gradient_norms = gradient_norms_.state();
  if (report.trouble == StepTrouble::spike)
    progress.suspect_steps = kSuspectSteps;
  else if (progress.suspect_steps > 0 && !report.skipped)
    --progress.suspect_steps;
  update_under_way_ = false;
  return report;
}

}  // namespace sortie::trainer
