#include "trainer/trainer.h"

#include <dnnl_version.h>
#include <fmt/core.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "trainer/metrics/memory.h"
#include "trainer/optim/lr_schedule.h"

namespace sortie::trainer {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

BitFacts bit_facts(const CpuFacts& cpu, const RankContext& rank, DType precision,
                   const std::string& build) {
  BitFacts facts;
  facts.isa = cpu.isa;
  facts.libraries =
      fmt::format("oneDNN {}.{}.{}", DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH);
  facts.build = build;
  facts.threads = rank.threads;
  facts.world_size = rank.world_size;
  facts.precision = dtype_name(precision);
  return facts;
}

}  // namespace

Result<DType> choose_precision(const std::string& precision, const CpuFacts& cpu) {
  if (precision == "f32") return DType::f32;
  if (precision == "auto") return cpu.multiplies_bf16 ? DType::bf16 : DType::f32;
  if (cpu.multiplies_bf16) return DType::bf16;
  return fail(ErrorCode::unsupported, fmt::format("model.precision = \"bf16\": this CPU ({}, {}) "
                                                  "has no bf16 products, f32 is faster here; use "
                                                  "\"auto\" or \"f32\"",
                                                  cpu.model, cpu.isa));
}

Trainer::Trainer(const config::JobConfig& job, const config::BatchPlan& batch,
                 const RankContext& rank, Communicator& communicator, EventSink& events,
                 SampleSource& training, SampleSource* validation, const CpuFacts& cpu,
                 DType precision, const std::string& build)
    : job_(job),
      batch_(batch),
      rank_(rank),
      communicator_(communicator),
      events_(events),
      training_(training),
      validation_(validation),
      cpu_(cpu),
      facts_(bit_facts(cpu, rank, precision, build)),
      context_(rank.threads),
      model_(context_, job.model, store_,
             job.topology.activation_checkpointing_type == "every_layer"),
      optimizer_(job.optimizer, store_),
      checkpointer_(job, facts_, store_, communicator),
      profiler_(job.profiler, rank.rank) {
  constexpr std::int64_t kShardUnit = 16;  // f32 elements of a cache line
  store_.finalize(context_, precision, communicator.size() * kShardUnit, /*with_optimizer=*/true);
  reducer_ =
      std::make_unique<GradientReducer>(store_, communicator, job.optimizer.allreduce_bucket_size);
  context_.set_poll([this] { reducer_->poll(); });
  checkpointer_.set_run_id(rank.run_id);
}

Result<> Trainer::start() {
  store_.initialize(static_cast<std::uint64_t>(job_.trainer.seed));
  SORTIE_ASSIGN_OR_RETURN(const std::optional<LoadedCheckpoint> loaded, checkpointer_.load());
  if (loaded) {
    progress_ = loaded->progress;
    last_saved_step_ = progress_.step;
    optimizer_.set_updates(progress_.updates);
    if (rank_.rank == 0) {
      events_.send({{"type", "note"},
                    {"text", fmt::format("resumed from {} at step {}", loaded->path.string(),
                                         progress_.step)}});
      if (!loaded->differences.empty())
        events_.send({{"type", "note"},
                      {"text", "losses will not be bit for bit those of an uninterrupted run: " +
                                   loaded->differences}});
    }
  }
  store_.refresh_compute_copy(context_);
  store_.weights_changed();
  return {};
}

Result<Tensor> Trainer::read_batch(SampleSource& source, std::int64_t first_sample,
                                   Tensor& targets) {
  const std::int64_t rows = batch_.micro_batch_size, length = job_.model.sequence_length;
  Tensor tokens = context_.empty(DType::i32, {rows, length});
  targets = context_.empty(DType::i32, {rows, length});
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto width = static_cast<std::size_t>(length);
    SORTIE_TRY(source.sample(first_sample + row,
                             {tokens.data<std::int32_t>() + row * length, width},
                             {targets.data<std::int32_t>() + row * length, width}));
  }
  return tokens;
}

Result<double> Trainer::forward_backward(std::int64_t micro_step) {
  const bool last = micro_step + 1 == batch_.gradient_accumulation_steps;
  // The samples of a step are cut over micro-steps, then ranks: with another topology they are the
  // same.
  const std::int64_t first =
      progress_.consumed_samples +
      (micro_step * communicator_.size() + communicator_.rank()) * batch_.micro_batch_size;
  Tensor tokens, targets;
  {
    Profiler::Section section(profiler_, "data");
    SORTIE_ASSIGN_OR_RETURN(tokens, read_batch(training_, first, targets));
  }
  const auto batch_tokens =
      static_cast<double>(batch_.global_batch_size * job_.model.sequence_length);
  ForwardContext context;
  context.training = true;
  context.seed = static_cast<std::uint64_t>(job_.trainer.seed);
  context.first_sample = first;
  context.routers.loss_scale = static_cast<float>(
      1.0 / static_cast<double>(batch_.gradient_accumulation_steps * communicator_.size()));
  Graph graph(context_, Graph::Mode::record);
  ops::CrossEntropyResult loss;
  {
    Profiler::Section section(profiler_, "forward");
    loss = model_.loss(graph, tokens, targets, static_cast<float>(1.0 / batch_tokens), context);
  }
  Profiler::Section section(profiler_, "backward");
  if (last) reducer_->begin();
  graph.backward({});
  routing_.add(context);
  return loss.loss_sum;
}

Result<StepReport> Trainer::step() {
  StepReport report;
  report.step = progress_.step + 1;
  report.learning_rate =
      learning_rate_at(job_.learning_rate_scheduler, job_.trainer.train_iterations, report.step);
  const auto begin = Clock::now();
  profiler_.begin_step(report.step);

  double loss_sum = 0.0;
  for (std::int64_t micro = 0; micro < batch_.gradient_accumulation_steps; ++micro) {
    SORTIE_ASSIGN_OR_RETURN(const double sum, forward_backward(micro));
    loss_sum += sum;
  }
  {
    Profiler::Section section(profiler_, "reduce");
    reducer_->finish();
    const double limit = std::chrono::duration<double>(job_.trainer.train_duration).count();
    const bool over = limit > 0 && trained_seconds_ + seconds_since(begin) >= limit;
    double sums[2] = {loss_sum, communicator_.rank() == 0 && over ? 1.0 : 0.0};
    communicator_.all_reduce_sum(sums);
    report.loss =
        sums[0] / static_cast<double>(batch_.global_batch_size * job_.model.sequence_length);
    report.stop_requested = sums[1] > 0;
    if (routing_.any()) {
      communicator_.all_reduce_sum(routing_.sums());
      report.balance_loss =
          routing_.balance_loss() /
          static_cast<double>(batch_.gradient_accumulation_steps * communicator_.size());
      report.mtp_loss = routing_.mtp_loss() /
                        static_cast<double>(batch_.global_batch_size * job_.model.sequence_length);
    }
  }
  {
    Profiler::Section section(profiler_, "optimizer");
    const StepOutcome outcome = optimizer_.step(context_, report.learning_rate);
    report.grad_norm = outcome.grad_norm;
    report.skipped = outcome.skipped;
    if (!report.skipped && job_.model.moe.bias_update_rate > 0)
      routing_.balance(store_, job_.model.moe.bias_update_rate);
    routing_.clear();
    store_.zero_gradients();
  }
  progress_.step = report.step;
  progress_.consumed_samples += batch_.global_batch_size;
  progress_.updates = optimizer_.updates();
  progress_.consecutive_skips = report.skipped ? progress_.consecutive_skips + 1 : 0;
  trained_seconds_ += seconds_since(begin);
  return report;
}

Result<double> Trainer::evaluate() {
  double sums[2] = {0.0, 0.0};
  for (std::int64_t i = 0; i < job_.trainer.eval_iterations; ++i) {
    const std::int64_t first =
        (i * communicator_.size() + communicator_.rank()) * batch_.micro_batch_size;
    Tensor targets;
    SORTIE_ASSIGN_OR_RETURN(const Tensor tokens, read_batch(*validation_, first, targets));
    ForwardContext context;
    Graph graph(context_, Graph::Mode::inference);
    const auto loss = model_.loss(graph, tokens, targets, 0.0f, context);
    sums[0] += loss.loss_sum;
    sums[1] += static_cast<double>(loss.count);
  }
  communicator_.all_reduce_sum(sums);
  return sums[0] / sums[1];
}

Result<> Trainer::save(bool last) {
  if (job_.trainer.save_dir.empty() || last_saved_step_ == progress_.step) return {};
  const Result<SavedCheckpoint> saved = checkpointer_.save(progress_);
  if (!saved) {
    // The last committed checkpoint is still there, and the disk may have room again at the next
    // one.
    if (last) return std::unexpected(saved.error());
    if (rank_.rank == 0)
      events_.send({{"type", "note"},
                    {"text", fmt::format("step {}: no checkpoint, training goes on: {}",
                                         progress_.step, saved.error().message)}});
    return {};
  }
  last_saved_step_ = progress_.step;
  if (rank_.rank == 0)
    events_.send({{"type", "checkpoint"},
                  {"step", progress_.step},
                  {"path", saved->path.string()},
                  {"bytes", saved->bytes},
                  {"seconds", saved->seconds}});
  return {};
}

void Trainer::report_start() {
  if (rank_.rank != 0) return;
  events_.send({{"type", "start"},
                {"architecture", job_.model.architecture},
                {"parameters", store_.parameter_elements()},
                {"precision", facts_.precision},
                {"isa", facts_.isa},
                {"cpu", cpu_.model},
                {"threads", rank_.threads},
                {"world_size", rank_.world_size},
                {"global_batch_size", batch_.global_batch_size},
                {"gradient_accumulation_steps", batch_.gradient_accumulation_steps},
                {"sequence_length", job_.model.sequence_length},
                {"step", progress_.step},
                {"steps", job_.trainer.train_iterations}});
  if (job_.model.precision == "auto" && facts_.precision == "f32")
    events_.send(
        {{"type", "note"},
         {"text", fmt::format("precision auto: f32, because this CPU ({}) has no bf16 products",
                              cpu_.isa)}});
}

void Trainer::report_step(const StepReport& report, double seconds) {
  if (rank_.rank != 0) return;
  last_loss_ = report.loss;
  if (report.skipped)
    events_.send(
        {{"type", "note"},
         {"text", fmt::format("step {}: gradients are not finite, step skipped ({} in a row)",
                              report.step, progress_.consecutive_skips)}});
  const bool due = report.step % job_.logger.log_interval == 0 || report.step == 1 || last_step();
  if (!due) return;
  const auto tokens = static_cast<double>(batch_.global_batch_size * job_.model.sequence_length);
  double eta = seconds * static_cast<double>(job_.trainer.train_iterations - report.step);
  const double limit = std::chrono::duration<double>(job_.trainer.train_duration).count();
  if (limit > 0) eta = std::min(eta, std::max(0.0, limit - trained_seconds_));
  nlohmann::json event = {
      {"type", "step"},
      {"step", report.step},
      {"steps", job_.trainer.train_iterations},
      {"loss", report.loss},
      {"lr", report.learning_rate},
      {"grad_norm", report.grad_norm},
      {"tokens_per_s", tokens / seconds},
      {"flops", flops_per_token(model_.shape(), model_.matrix_parameters()) * tokens / seconds},
      {"step_ms", seconds * 1e3},
      {"eta_s", eta},
      {"skipped", report.skipped},
      {"consumed_tokens", progress_.consumed_samples * job_.model.sequence_length}};
  if (routing_.any()) {
    event["balance_loss"] = report.balance_loss;
    event["mtp_loss"] = report.mtp_loss;
  }
  events_.send(event);
}

void Trainer::report_evaluation(double loss) {
  if (rank_.rank == 0) events_.send({{"type", "eval"}, {"step", progress_.step}, {"loss", loss}});
}

Result<> Trainer::run() {
  SORTIE_TRY(start());
  report_start();
  const config::TrainerConfig& config = job_.trainer;
  bool stop = false;
  double validation_loss = std::nan("");
  std::int64_t evaluated_step = -1;
  if (validation_ && config.eval_interval > 0 && progress_.step == 0) {
    SORTIE_ASSIGN_OR_RETURN(validation_loss, evaluate());  // what training starts from
    report_evaluation(validation_loss);
  }
  while (!last_step() && !stop) {
    const auto begin = Clock::now();
    SORTIE_ASSIGN_OR_RETURN(const StepReport report, step());
    report_step(report, seconds_since(begin));
    stop = report.stop_requested;
    if (profiler_.complete()) {
      std::string path = job_.profiler.profiler_output;
      if (path.empty()) path = fmt::format("profile-rank-{}.json", rank_.rank);
      SORTIE_TRY(profiler_.write(path));
    }
    if (progress_.consecutive_skips >= config.max_consecutive_skips)
      return fail(
          ErrorCode::diverged,
          fmt::format("step {}: gradients were not finite {} times in a row; lower "
                      "learning_rate_scheduler.learning_rate, or look at the data of these steps",
                      report.step, progress_.consecutive_skips));
    const bool end = last_step() || stop;
    if (validation_ && config.eval_interval > 0 &&
        (end || report.step % config.eval_interval == 0)) {
      SORTIE_ASSIGN_OR_RETURN(validation_loss, evaluate());
      evaluated_step = report.step;
      report_evaluation(validation_loss);
    }
    if (end || (config.save_interval > 0 && report.step % config.save_interval == 0))
      SORTIE_TRY(save(end));
  }
  if (rank_.rank == 0)
    events_.send(
        {{"type", "done"},
         {"step", progress_.step},
         {"loss", last_loss_},
         {"validation_loss", evaluated_step == progress_.step ? validation_loss : std::nan("")},
         {"seconds", trained_seconds_},
         {"peak_memory_bytes", peak_memory_bytes()},
         {"events_dropped", events_.dropped()}});
  return {};
}

}  // namespace sortie::trainer
