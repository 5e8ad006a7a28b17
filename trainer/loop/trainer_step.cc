// One optimizer step, and validation.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "common/base/elapsed.h"
#include "trainer/loop/trainer.h"

namespace sortie::trainer {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

void Trainer::begin_reading() {
  ReadingCourse course;
  course.first = first_sample_of(0);
  // A step is a whole number of micro-steps, so the distance is the same within steps and between.
  course.stride = communicator_.size() * batch_.micro_batch_size;
  course.rows = batch_.micro_batch_size;
  course.length = job_.model.sequence_length;
  course.end = config::samples_of_steps(batch_, job_.trainer.train_iterations);
  // Where targets are counted first, a step takes all of its micro-batches at once.
  constexpr std::int64_t kAhead = 4;
  course.ahead = static_cast<std::size_t>(
      training_.masks_targets() ? batch_.gradient_accumulation_steps + kAhead : kAhead);
  prefetcher_ = std::make_unique<Prefetcher>(training_, course);
}

Result<Trainer::Batch> Trainer::next_batch(std::int64_t first_sample) {
  Profiler::Section section(profiler_, "data");
  const Shape shape{batch_.micro_batch_size, job_.model.sequence_length};
  Batch batch{context_.empty(DType::i32, shape), context_.empty(DType::i32, shape)};
  const auto elements = static_cast<std::size_t>(batch.tokens.elements());
  SORTIE_TRY(prefetcher_->next(first_sample, {batch.tokens.data<std::int32_t>(), elements},
                               {batch.targets.data<std::int32_t>(), elements}));
  return batch;
}

Result<std::int64_t> Trainer::count_targets(std::int64_t micro_steps, std::vector<Batch>& batches) {
  const std::int64_t samples = micro_steps * communicator_.size() * batch_.micro_batch_size;
  if (!training_.masks_targets()) return samples * job_.model.sequence_length;
  double counted = 0.0;
  for (std::int64_t micro = 0; micro < micro_steps; ++micro) {
    SORTIE_ASSIGN_OR_RETURN(Batch batch, next_batch(first_sample_of(micro)));
    const auto* targets = batch.targets.data<std::int32_t>();
    counted += static_cast<double>(std::count_if(targets, targets + batch.targets.elements(),
                                                 [](std::int32_t target) { return target >= 0; }));
    batches.push_back(std::move(batch));
  }
  communicator_.all_reduce_sum({&counted, 1});
  return static_cast<std::int64_t>(counted);
}

Result<double> Trainer::forward_backward(std::int64_t micro_step, std::int64_t micro_steps,
                                         std::vector<Batch>& batches, std::int64_t targets) {
  Batch batch;
  if (!batches.empty()) {
    batch = std::move(batches[static_cast<std::size_t>(micro_step)]);
  } else {
    SORTIE_ASSIGN_OR_RETURN(batch, next_batch(first_sample_of(micro_step)));
  }
  ForwardContext context;
  context.training = true;
  context.seed = static_cast<std::uint64_t>(job_.trainer.seed);
  context.first_sample = first_sample_of(micro_step);
  context.routers.loss_scale =
      static_cast<float>(1.0 / static_cast<double>(micro_steps * communicator_.size()));
  Graph graph(context_, Graph::Mode::record);
  ops::CrossEntropyResult loss;
  {
    Profiler::Section section(profiler_, "forward");
    const auto scale =
        static_cast<float>(1.0 / static_cast<double>(std::max<std::int64_t>(targets, 1)));
    loss = model_.loss(graph, batch.tokens, batch.targets, scale, context);
  }
  Profiler::Section section(profiler_, "backward");
  if (micro_step + 1 == micro_steps) reducer_->begin();
  graph.backward({});
  routing_.add(context);
  return loss.loss_sum;
}

/// What every rank must know alike: the loss, and whether one of them wants to stop or to save.
void Trainer::agree(StepReport& report, double loss_sum, std::int64_t targets, double seconds) {
  const double limit = std::chrono::duration<double>(job_.trainer.train_duration).count();
  const bool over = communicator_.rank() == 0 && limit > 0 && trained_seconds_ + seconds >= limit;
  double sums[] = {loss_sum, over ? 1.0 : 0.0, signals_ && signals_->stop_requested() ? 1.0 : 0.0,
                   signals_ && signals_->take_save_request() ? 1.0 : 0.0,
                   checkpointer_.has_written() ? 1.0 : 0.0};
  communicator_.all_reduce_sum(sums);
  report.loss = sums[0] / static_cast<double>(std::max<std::int64_t>(targets, 1));
  report.time_is_up = sums[1] > 0;
  report.stop_requested = sums[2] > 0;
  report.save_requested = sums[3] > 0;
  report.saves_written = sums[4] == communicator_.size();
}

/// The losses beside the loss, and over all ranks what the routers' biases go by.
void Trainer::agree_on_routing(StepReport& report, std::int64_t micro_steps, std::int64_t targets) {
  if (!routing_.any()) return;
  communicator_.all_reduce_sum(routing_.sums());
  report.balance_loss =
      routing_.balance_loss() / static_cast<double>(micro_steps * communicator_.size());
  report.mtp_loss = routing_.mtp_loss() / static_cast<double>(std::max<std::int64_t>(targets, 1));
}

/// Why the update must not be made; empty when it may.
std::string Trainer::skip_reason(const StepReport& report) const {
  if (!std::isfinite(report.grad_norm)) return "gradients are not finite";
  const auto far = [](const char* what, double value, const OutlierDetector& seen) {
    return fmt::format("the {} of {:.4g} is {:.1f} deviations above its mean of {:.4g}", what,
                       value, seen.deviations(value), seen.state().mean);
  };
  if (losses_.stands_out(report.loss)) return far("loss", report.loss, losses_);
  if (gradient_norms_.stands_out(report.grad_norm))
    return far("gradient norm", report.grad_norm, gradient_norms_);
  return {};
}

void Trainer::update(StepReport& report) {
  Profiler::Section section(profiler_, "optimizer");
  report.grad_norm = optimizer_.gradient_norm(context_);
  report.skip_reason = skip_reason(report);
  report.skipped = !report.skip_reason.empty();
  losses_.add(report.loss);
  gradient_norms_.add(report.grad_norm);
  if (!report.skipped) {
    optimizer_.update(context_, report.step, report.grad_norm);
    if (job_.model.moe.bias_update_rate > 0)
      routing_.balance(store_, job_.model.moe.bias_update_rate);
  }
  routing_.clear();
  store_.zero_gradients();
}

Result<StepReport> Trainer::step() {
  StepReport report;
  report.step = progress_.step + 1;
  report.learning_rate = optimizer_.learning_rate(report.step);
  report.samples = config::batch_size_at(batch_, progress_.consumed_samples);
  report.tokens = report.samples * job_.model.sequence_length;
  const std::int64_t micro_steps =
      report.samples / (batch_.micro_batch_size * communicator_.size());
  const auto begin = Clock::now();
  profiler_.begin_step(report.step);
  if (!prefetcher_) begin_reading();

  std::vector<Batch> batches;
  SORTIE_ASSIGN_OR_RETURN(const std::int64_t targets, count_targets(micro_steps, batches));
  double loss_sum = 0.0;
  for (std::int64_t micro = 0; micro < micro_steps; ++micro) {
    SORTIE_ASSIGN_OR_RETURN(const double sum,
                            forward_backward(micro, micro_steps, batches, targets));
    loss_sum += sum;
  }
  {
    Profiler::Section section(profiler_, "reduce");
    reducer_->finish();
    agree(report, loss_sum, targets, seconds_since(begin));
    agree_on_routing(report, micro_steps, targets);
  }
  update(report);
  report.data_seconds = prefetcher_->take_waited_seconds();
  progress_.step = report.step;
  progress_.loss = report.loss;
  progress_.consumed_samples += report.samples;
  progress_.updates = optimizer_.updates();
  progress_.consecutive_skips = report.skipped ? progress_.consecutive_skips + 1 : 0;
  progress_.losses = losses_.state();
  progress_.gradient_norms = gradient_norms_.state();
  trained_seconds_ += seconds_since(begin);
  if (signals_ && report.stop_requested) signals_->step_ended();
  return report;
}

Result<Validation> Trainer::evaluate() {
  return validate(validation_, {job_.trainer.eval_samples, batch_.micro_batch_size}, context_,
                  model_, communicator_);
}

}  // namespace sortie::trainer
