#include "trainer/loop/trainer.h"

#include <dnnl.h>
#include <fmt/core.h>
#include <gnu/libc-version.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/elapsed.h"
#include "common/base/log.h"
#include "trainer/loop/replica_check.h"

namespace sortie::trainer {
namespace {

using Clock = std::chrono::steady_clock;

/// Of the libraries that run: those that the program was compiled with may be others.
BitFacts bit_facts(const CpuFacts& cpu, const RankContext& rank, const Communicator& communicator,
                   const SampleSource& training, DType precision, const std::string& build) {
  BitFacts facts;
  facts.isa = cpu.isa;
  const dnnl_version_t& onednn = *dnnl_version();
  facts.onednn = fmt::format("{}.{}.{} {}", onednn.major, onednn.minor, onednn.patch, onednn.hash);
  facts.mpi = communicator.library();
  facts.libm = fmt::format("glibc {}", gnu_get_libc_version());
  facts.data = training.fingerprint();
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
                 SampleSource& training, std::vector<ValidationSet> validation, const CpuFacts& cpu,
                 DType precision, const std::string& build)
    : job_(job),
      batch_(batch),
      rank_(rank),
      communicator_(communicator),
      report_(job_, batch_, rank_, events, !validation.empty()),
      validation_(std::move(validation)),
      cpu_(cpu),
      facts_(bit_facts(cpu, rank, communicator, training, precision, build)),
      precision_(precision),
      step_(job, batch, rank, communicator, training),
      prepared_(step_.prepare()),
      checkpointer_(job, facts_, step_.store(), communicator) {
  checkpointer_.set_run_id(rank.run_id);
}

Result<> Trainer::start() {
  if (started_) return {};
  SORTIE_TRY(prepared_);
  SORTIE_TRY(checkpointer_.prepare());
  step_.allocate(precision_);
  if (!checkpointer_.loads_all_values())
    store().initialize(static_cast<std::uint64_t>(job_.trainer.seed));
  SORTIE_ASSIGN_OR_RETURN(const std::optional<LoadedCheckpoint> loaded, checkpointer_.load());
  if (loaded) {
    progress_ = loaded->progress;
    // A fork's own folder has no checkpoint of this step.
    if (loaded->kind == StartPoint::Kind::resume) last_saved_step_ = progress_.step;
    step_.resume(progress_);
    report_.loaded(*loaded);
  } else {
    report_.from_seed();
  }
  SORTIE_TRY(check_initial_state(communicator_, rank_, store()));
  store().refresh_compute_copy(context());
  store().weights_changed();
  started_ = true;
  return {};
}

Result<> Trainer::save(bool last, Checkpointer::Series series) {
  const bool best = series == Checkpointer::Series::best;
  if (job_.trainer.save_dir.empty() || (!best && last_saved_step_ == progress_.step)) return {};
  const auto begin = Clock::now();
  if (signals_) signals_->expect(save_seconds_);
  const Result<SavedCheckpoint> saved = checkpointer_.save(progress_, series);
  save_seconds_ = std::max(save_seconds_, seconds_since(begin));
  if (!saved) {
    // The last committed checkpoint is still there, and the disk may have room again at the next
    // one.
    if (last) return std::unexpected(saved.error());
    report_.note(fmt::format("step {}: no checkpoint, training goes on: {}", progress_.step,
                             saved.error().message));
    return {};
  }
  if (!best) last_saved_step_ = progress_.step;
  report_.checkpoint(progress_.step, *saved, best);
  if (!saved->warning.empty()) report_.note(saved->warning);
  return {};
}

Result<> Trainer::evaluate_and_keep() {
  const auto begin = Clock::now();
  if (signals_) signals_->expect(evaluation_seconds_);
  SORTIE_ASSIGN_OR_RETURN(const Validation validation, evaluate());
  validation_loss_ = validation.loss;
  evaluated_step_ = progress_.step;
  evaluation_seconds_ = seconds_since(begin);
  progress_.validation_loss = validation_loss_;
  progress_.validation_step = progress_.step;
  const bool best = validation_loss_ < progress_.best_validation_loss;
  if (best) {
    progress_.best_validation_loss = validation_loss_;
    progress_.best_validation_step = progress_.step;
  }
  report_.evaluation(progress_, validation, evaluation_seconds_);
  // Before the first step it is the loss of the weights that training starts from.
  Result<> kept;
  if (best && job_.trainer.keep_best && progress_.step > 0)
    kept = save(/*last=*/false, Checkpointer::Series::best);
  report_.validation_took(seconds_since(begin));
  return kept;
}

/// The trace of this rank goes into the run folder, or where profiler.profiler_output says. One
/// that can not be written costs no training.
void Trainer::keep_profile() {
  const std::filesystem::path path = profile_path(job_.profiler, rank_);
  if (path.empty()) return report_.profile(step_.profiler().trace(), "");  // the launcher writes it
  if (const Result<> written = step_.profiler().write(path))
    report_.profile({}, path.string());
  else
    log::warning("profile of rank {}: {}", rank_.rank, written.error().message);
}

/// What is due at the end of a step: checks, validation, checkpoints.
Result<> Trainer::after_step(const StepReport& report) {
  const config::TrainerConfig& config = job_.trainer;
  if (step_.profiler().complete()) keep_profile();
  if (progress_.consecutive_skips >= config.max_consecutive_skips)
    return fail(ErrorCode::diverged,
                fmt::format("step {}: {} steps in a row were skipped, this one because {}; lower "
                            "learning_rate_scheduler.learning_rate, or look at the data of these "
                            "steps",
                            report.step, progress_.consecutive_skips, report.skip_reason));
  const auto due = [&](std::int64_t interval) {
    return interval > 0 && report.step % interval == 0;
  };
  const bool stop = report.stop_requested;
  const bool end = last_step() || report.time_is_up || stop;
  if (due(config.replica_check_interval))
    SORTIE_TRY(check_replicas(communicator_, rank_, store(), report.step));
  // Who is told to stop has little time: the checkpoint comes first, and nothing else.
  if (!validation_.empty() && config.eval_interval > 0 && !stop &&
      (end || due(config.eval_interval)))
    SORTIE_TRY(evaluate_and_keep());
  if (end || due(config.save_interval) || report.save_requested) SORTIE_TRY(save(end));
  if (!stop) return {};
  return fail(ErrorCode::interrupted,
              fmt::format("stopped by SIGTERM after step {}, with a checkpoint in {}; start it "
                          "again to go on",
                          report.step, config.save_dir));
}

/// What the ranks tell each other with a step's loss.
enum StepFlag : std::size_t { kTimeIsUp, kStop, kSave, kStepFlags };

Result<StepReport> Trainer::step() {
  const auto begin = Clock::now();
  const auto tell = [this](double seconds, TrainingStep::Flags flags) {
    const double limit = std::chrono::duration<double>(job_.trainer.train_duration).count();
    flags[kTimeIsUp] =
        communicator_.rank() == 0 && limit > 0 && trained_seconds_ + seconds >= limit;
    flags[kStop] = signals_ && signals_->stop_requested();
    flags[kSave] = signals_ && signals_->take_save_request();
  };
  double flags[kStepFlags] = {};
  SORTIE_ASSIGN_OR_RETURN(StepReport report, step_.take(progress_, tell, flags));
  report.time_is_up = flags[kTimeIsUp] > 0;
  report.stop_requested = flags[kStop] > 0;
  report.save_requested = flags[kSave] > 0;
  trained_seconds_ += seconds_since(begin);
  if (signals_ && report.stop_requested) signals_->step_ended();
  return report;
}

Result<Validation> Trainer::evaluate() {
  return validate(validation_, {job_.trainer.eval_samples, batch_.micro_batch_size}, context(),
                  model(), communicator_);
}

Result<> Trainer::run() {
  SORTIE_TRY(start());
  step_.begin_reading(progress_);
  report_.start(facts_, cpu_, progress_, checkpointer_.first_run_id());
  if (!validation_.empty() && job_.trainer.eval_interval > 0 && progress_.step == 0)
    SORTIE_TRY(evaluate_and_keep());  // what training starts from
  if (!job_.trainer.save_dir.empty()) signals_ = std::make_unique<SaveSignals>();
  bool time_is_up = false;
  while (!last_step() && !time_is_up) {
    const auto begin = Clock::now();
    SORTIE_ASSIGN_OR_RETURN(const StepReport report, step());
    const double seconds = seconds_since(begin);
    report_.step(report, progress_, seconds, trained_seconds_);
    time_is_up = report.time_is_up;
    SORTIE_TRY(after_step(report));
    if (signals_) signals_->expect(seconds);  // the next one takes about as long
  }
  step_.profiler().end();
  if (step_.profiler().complete()) keep_profile();
  report_.done(progress_, evaluated_step_ == progress_.step ? validation_loss_ : std::nan(""),
               trained_seconds_, measure_memory(store(), context().allocator()));
  return {};
}

}  // namespace sortie::trainer
