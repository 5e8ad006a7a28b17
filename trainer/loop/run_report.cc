#include "trainer/loop/run_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "trainer/planning/rank_plan.h"

namespace sortie::trainer {

namespace {

constexpr std::chrono::seconds kBetweenLines{1};
constexpr std::size_t kPartBytes = 32u << 10;  // of a profile; an event has 64 KiB at most

training::MemoryParts parts_of(const MemoryUse& memory) {
  training::MemoryParts parts = {{"total", memory.total()}};
  for (const auto& [name, bytes] : memory.parts())
    if (name != "device" || bytes > 0) parts[std::string(name)] = bytes;
  return parts;
}

Pace::Intervals intervals_of(const config::TrainerConfig& config, bool validates) {
  return {config.eval_interval, config.save_interval, validates && config.eval_interval > 0,
          !config.save_dir.empty()};
}

}  // namespace

RunReport::RunReport(const config::JobConfig& job, const config::BatchPlan& batch,
                     const RankContext& rank, EventSink& events, bool validates)
    : job_(job),
      batch_(batch),
      rank_(rank),
      events_(events),
      pace_(intervals_of(job.trainer, validates)) {}

void RunReport::tell(const training::Event& event) {
  if (silent()) return;
  events_.send(training::to_json(event));
  events_.say(training::event_line(event));
}

void RunReport::note(const std::string& text) {
  tell(training::NoteEvent{text});
}

void RunReport::loaded(const LoadedCheckpoint& checkpoint) {
  using Kind = StartPoint::Kind;
  const std::string path = checkpoint.path.string();
  const std::int64_t step = checkpoint.progress.step;
  if (checkpoint.kind == Kind::weights)
    return note(fmt::format("weights from {} ({}), step 0", path, checkpoint.reason));
  resumed_from_ = path;
  last_loss_ = checkpoint.progress.loss;
  if (checkpoint.kind == Kind::resume)
    note(fmt::format("resumed from {} at step {} ({})", path, step, checkpoint.reason));
  else if (job_.trainer.save_dir.empty())
    note(fmt::format("started from {} at step {} ({})", path, step, checkpoint.reason));
  else
    note(fmt::format("forked from {} at step {} ({}); this run's own checkpoints go to {}", path,
                     step, checkpoint.reason, job_.trainer.save_dir));
  if (!checkpoint.differences.empty())
    note(fmt::format("losses will not be bit for bit those of an uninterrupted run: {}",
                     fmt::join(checkpoint.differences, ", ")));
}

void RunReport::from_seed() {
  if (!job_.trainer.save_dir.empty())
    note(fmt::format("no checkpoint in {}: initial weights from trainer.seed = {}",
                     job_.trainer.save_dir, job_.trainer.seed));
}

void RunReport::start(const BitFacts& facts, const CpuFacts& cpu, const TrainingProgress& progress,
                      const std::string& first_run) {
  if (silent()) return;
  PlanOptions options;
  options.micro_batch_size = batch_.micro_batch_size;
  options.world_size = rank_.world_size;
  options.dtype = facts.precision == dtype_name(DType::f32) ? DType::f32 : DType::bf16;
  options.threads = rank_.threads;
  options.gpu = rank_.compute.gpu.has_value();
  const auto stages = plan_stages(job_, options);
  SORTIE_CHECK(stages.has_value(), "{}", stages.error().message);  // start() would have failed
  const RankPlan whole = whole_plan(*stages);
  flops_per_token_ = whole.flop_per_token;
  planned_ = stages->front().memory;  // of this rank, the first
  training::StartEvent event;
  event.architecture = job_.model.architecture;
  event.parameters = whole.parameters.total;
  event.flops_per_token = flops_per_token_;
  event.planned_memory = parts_of(planned_);
  event.precision = facts.precision;
  event.isa = facts.isa;
  event.cpu = cpu.model;
  event.gpu = facts.gpu;
  event.threads = rank_.threads;
  event.world_size = rank_.world_size;
  event.global_batch_size = batch_.global_batch_size;
  event.gradient_accumulation_steps = batch_.gradient_accumulation_steps;
  event.sequence_length = job_.model.sequence_length;
  event.step = progress.step;
  event.steps = job_.trainer.train_iterations;
  event.save_dir = job_.trainer.save_dir;
  event.resumed_from = resumed_from_;
  event.first_run = first_run;
  event.best_loss = progress.best.loss;
  event.best_step = progress.best.step;
  tell(event);
  if (job_.model.precision == "auto" && facts.precision == "f32")
    note(fmt::format("precision auto: f32, because this CPU ({}) has no bf16 products", facts.isa));
}

void RunReport::step(const StepReport& report, const TrainingProgress& progress, double seconds,
                     double trained_seconds) {
  if (silent()) return;
  last_loss_ = report.loss;
  pace_.step(seconds);
  if (report.skipped)
    note(fmt::format("step {}: {}, step skipped ({} in a row)", report.step, report.skip_reason,
                     progress.consecutive_skips));
  const std::int64_t steps = job_.trainer.train_iterations;
  if (report.step % job_.logger.log_interval != 0 && report.step != 1 && report.step < steps)
    return;
  const auto tokens = static_cast<double>(report.tokens);
  // trainer.train_duration counts only steps.
  std::int64_t last = steps;
  const double limit = std::chrono::duration<double>(job_.trainer.train_duration).count();
  if (limit > 0) {
    const double left = std::max(0.0, limit - trained_seconds) / pace_.step_seconds();
    if (left < static_cast<double>(steps - report.step))
      last = report.step + static_cast<std::int64_t>(left) + 1;
  }
  training::StepEvent event;
  event.step = report.step;
  event.steps = steps;
  event.loss = report.loss;
  event.lr = report.learning_rate;
  event.grad_norm = report.grad_norm;
  event.step_ms = seconds * 1e3;
  event.data_wait_ms = report.data_seconds * 1e3;
  event.tokens_per_s = tokens / seconds;
  event.flops = flops_per_token_ * tokens / seconds;
  event.mean_tokens_per_s = tokens / pace_.whole_step_seconds();
  event.eta_s = report.time_is_up ? 0.0 : pace_.remaining(report.step, last);
  event.skipped = report.skipped;
  event.consumed_tokens = progress.consumed_samples * job_.model.sequence_length;
  event.balance_loss = report.balance_loss;
  event.mtp_loss = report.mtp_loss;
  event.dropped_choices = report.dropped_choices;
  if (batch_.rampup_share > 0) event.batch_size = report.samples;
  events_.send(training::to_json(event));
  say(report, event);
}

/// Every step is in the metrics. The log has at most one line per second, and the first and the
/// last step.
void RunReport::say(const StepReport& report, const training::StepEvent& event) {
  const auto now = std::chrono::steady_clock::now();
  const bool edge = said_ == std::chrono::steady_clock::time_point{} || report.skipped ||
                    report.time_is_up || report.stop_requested || report.step >= event.steps;
  if (!edge && now - said_ < kBetweenLines) return;
  said_ = now;
  events_.say(training::event_line(event));
}

void RunReport::evaluation(const TrainingProgress& progress, const Validation& validation,
                           double seconds) {
  training::EvalEvent event;
  event.step = progress.step;
  event.loss = validation.loss;
  if (validation.sets.size() > 1)
    for (const Validation::Set& set : validation.sets) event.sets[set.name] = set.loss;
  event.seconds = seconds;
  event.best_loss = progress.best.loss;
  event.best_step = progress.best.step;
  tell(event);
}

void RunReport::checkpoint(std::int64_t step, const SavedCheckpoint& saved, bool best) {
  if (silent()) return;
  tell(training::CheckpointEvent{step, saved.path.string(), saved.bytes, saved.seconds,
                                 saved.stall_seconds, best, saved.suspect});
}

void RunReport::memory_checkpoint(const MemoryCheckpoints::Snapshot& snapshot) {
  if (silent()) return;
  events_.send(training::to_json(
      training::MemoryCheckpointEvent{snapshot.step, snapshot.bytes, snapshot.stall_seconds}));
}

void RunReport::last_checkpoint(std::int64_t step, const SavedCheckpoint& saved) {
  events_.send(training::to_json(training::CheckpointEvent{step, saved.path.string(), saved.bytes,
                                                           saved.seconds, saved.stall_seconds,
                                                           false, saved.suspect}));
  events_.flush();
}

void RunReport::rolled_back(const Checkpointer::RolledBack& back) {
  last_loss_ = back.progress.loss;
  const Rollback& one = back.rollback;
  tell(training::RollbackEvent{one.from, one.to, one.skipped, one.reason, back.path.string()});
}

void RunReport::replicas_differ(std::int64_t step, const ReplicaDifference& difference) {
  for (const ReplicaDifference::Rank& one : difference.ranks)
    tell(training::FaultEvent{step, one.rank, one.host, "replica_mismatch"});
}

void RunReport::profile(const nlohmann::json& trace_events, const std::string& path) {
  nlohmann::json event = training::to_json(training::ProfileEvent{rank_.rank, rank_.host, path});
  if (path.empty()) {
    nlohmann::json& part = event["events"] = nlohmann::json::array();
    std::size_t bytes = 0;
    for (const auto& entry : trace_events) {
      bytes += entry.dump().size() + 1;
      part.push_back(entry);
      if (bytes < kPartBytes) continue;
      events_.send(event);
      events_.flush();  // more than the sink keeps would be dropped
      part.clear();
      bytes = 0;
    }
    if (part.empty()) return;
  }
  events_.send(event);
}

void RunReport::done(const TrainingProgress& progress, double validation_loss,
                     double trained_seconds, const MemoryUse& memory) {
  training::DoneEvent event;
  event.step = progress.step;
  event.steps = job_.trainer.train_iterations;
  event.loss = last_loss_;
  event.validation_loss = validation_loss;
  event.seconds = trained_seconds;
  event.peak_memory_bytes = static_cast<std::int64_t>(memory.total());
  event.memory = parts_of(memory);
  MemoryUse planned = planned_;
  planned.device = memory.device;  // what is not measured is not compared
  event.planned_memory = parts_of(planned);
  event.events_dropped = static_cast<std::int64_t>(events_.dropped());
  tell(event);
}

}  // namespace sortie::trainer
