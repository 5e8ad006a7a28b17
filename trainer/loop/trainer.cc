#include "trainer/loop/trainer.h"

#include <fmt/core.h>
#include <gnu/libc-version.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/elapsed.h"
#include "common/base/log.h"
#include "common/config/mesh.h"
#include "trainer/loop/product_choice.h"
#include "trainer/loop/replica_check.h"
#include "trainer/ops/onednn_version.h"
#include "trainer/planning/fp8_rules.h"

namespace sortie::trainer {
namespace {

using Clock = std::chrono::steady_clock;

/// Names the libraries in use; those that the program was compiled with may differ.
BitFacts bit_facts(const CpuFacts& cpu, const RankContext& rank, const Communicator& communicator,
                   const config::JobConfig& job, const SampleSource& training, DType precision,
                   const std::string& build) {
  BitFacts facts;
  facts.isa = cpu.isa;
  facts.onednn = ops::onednn_version();
  facts.mpi = communicator.library();
  facts.libm = fmt::format("glibc {}", gnu_get_libc_version());
  facts.data = training.fingerprint();
  facts.order = training.order();
  facts.build = build;
  facts.threads = rank.threads;
  facts.world_size = rank.world_size;
  facts.layout = config::layout_text(job.topology);
  facts.precision = name_of_precision(job.model, precision);
  if (rank.compute.gpu) {
    facts.gpu = rank.compute.name();
    facts.gpu_libraries = rank.compute.libraries;
    facts.sum_settings = communicator.settings();
  }
  return facts;
}

}  // namespace

Trainer::Trainer(const config::JobConfig& job, const config::BatchPlan& batch,
                 const RankContext& rank, Communicator& communicator, EventSink& events,
                 SampleSource& training, std::vector<ValidationSet> validation, const CpuFacts& cpu,
                 DType precision, const std::string& build)
    : job_(job),
      batch_(batch),
      rank_(rank),
      communicator_(communicator),
      layout_(job.topology, communicator),
      report_(job_, batch_, rank_, events, !validation.empty()),
      validation_(std::move(validation)),
      measure_(validation_measure(validation_, job_)),
      cpu_(cpu),
      facts_(bit_facts(cpu, rank, communicator, job, training, precision, build)),
      precision_(precision),
      step_(job, batch, rank, layout_, training),
      prepared_(step_.prepare()),
      checkpointer_(job, facts_, step_.store(), layout_, step_.context()) {
  checkpointer_.set_claimant({rank.run_id, rank.attempt});
  checkpointer_.set_host(rank.host);
  checkpointer_.set_memory_folder(rank.memory_folder);
}

/// Sets what checkpoints contain in addition to the weights, before one is read.
Result<> Trainer::begin_outer() {
  if (site_ == nullptr) return {};
  outer_ = std::make_unique<outer::OuterLoop>(*site_, job_, batch_, layout_, step_, [this] {
    return signals_ && signals_->stop_requested();
  });
  checkpointer_.set_extras({.to_save = [this] { return outer_->pieces_to_save(); },
                            .to_load = [this] { return outer_->pieces_to_load(); },
                            .most = outer_->most_elements()});
  return {};
}

/// The same for delayed scaling.
Result<> Trainer::begin_fp8() {
  Fp8Histories& histories = step_.fp8_histories();
  if (!histories.kept()) return {};
  if (outer_)
    return fail(ErrorCode::config,
                "model.fp8_scaling = \"delayed\": sites do not share its state; use \"current\"");
  checkpointer_.set_extras({.to_save = [&histories] { return histories.pieces_to_save(); },
                            .to_load = [&histories] { return histories.pieces_to_load(); },
                            .most = histories.elements()});
  return {};
}

/// On GPUs: selects how products are computed.
Result<> Trainer::settle_products() {
  if (!rank_.compute.gpu) return {};
  SORTIE_ASSIGN_OR_RETURN(
      const std::string note,
      choose_products(context(), communicator_, checkpointer_.saved_product_choices(),
                      rank_.timed_products, [this] { step_.rehearse(); }));
  if (!note.empty()) report_.note(note);
  return {};
}

Result<> Trainer::check_own() const {
  if (site_ != nullptr) SORTIE_TRY(outer::OuterLoop::check(*site_, job_));
  return prepared_;
}

Result<> Trainer::choose_start() {
  if (!chosen_) chosen_ = checkpointer_.prepare();
  return *chosen_;
}

Result<> Trainer::start() {
  if (started_) return {};
  SORTIE_TRY(check_own());
  SORTIE_TRY(choose_start());
  step_.allocate(precision_);
  SORTIE_TRY(begin_outer());
  SORTIE_TRY(begin_fp8());
  SORTIE_TRY(checkpointer_.count_extras());
  if (!checkpointer_.loads_all_values())
    store().initialize(static_cast<std::uint64_t>(job_.trainer.seed));
  SORTIE_ASSIGN_OR_RETURN(const std::optional<LoadedCheckpoint> loaded, checkpointer_.load());
  if (loaded) {
    progress_ = loaded->progress;
    if (site_ == nullptr) progress_.outer = {};  // steps without sites are in no round
    step_.resume(progress_);
    step_.fp8_histories().loaded(context());
    report_.loaded(*loaded);
  } else {
    report_.from_seed();
  }
  if (const auto other = forget_other_measure())
    report_.note(fmt::format(
        "validation: other samples or sequences than before (the sets, trainer.eval_samples, "
        "model.sequence_length, model.document_end_token, model.reset_positions); the lowest loss "
        "until here, {:.4f} at step {}, counts no more, and the next one is the lowest",
        other->loss, other->step));
  for (const std::string& text : checkpointer_.take_start_notes()) report_.note(text);
  if (const std::string text = bf16_products(store()).text(); !text.empty()) report_.note(text);
  store().refresh_compute_copy(context());
  step_.spread_weights();
  store().weights_changed();
  SORTIE_TRY(check_initial_state(layout_, rank_, store()));
  SORTIE_TRY(settle_products());
  SORTIE_TRY(checkpointer_.reserve_memory());
  if (const std::string why = checkpointer_.reserve_snapshot(); !why.empty()) report_.note(why);
  for (const std::string& text : step_.take_graph_notes()) report_.note(text);
  validation_losses_.emplace(step_.repeats_passes());
  step_.set_skipped(skipped_by(checkpointer_.rollbacks()));
  if (outer_) SORTIE_TRY(outer_->start(progress_));
  loaded_round_ = progress_.outer.round;
  last_equal_ = step_before_ = progress_.step;
  checkpointer_.start_scrubbing();
  started_ = whole_ = true;
  return {};
}

Result<bool> Trainer::evaluate_and_report() {
  const auto begin = Clock::now();
  if (signals_) signals_->expect(evaluation_seconds_);
  rank_.marks->enter(training::Section::evaluate);
  if (outer_) outer_->show_outer_weights(progress_);
  SORTIE_ASSIGN_OR_RETURN(const Validation validation, evaluate());
  if (outer_) outer_->show_own_weights(progress_);
  if (const auto failure = validation_losses_->take_failure()) report_.note(*failure);
  validation_loss_ = validation.loss;
  evaluated_step_ = progress_.step;
  evaluation_seconds_ = seconds_since(begin);
  progress_.validation_loss = validation_loss_;
  progress_.validation_step = progress_.step;
  // Only rank 0 knows of a concurrent save that has failed.
  communicator_.broadcast(std::as_writable_bytes(std::span(&progress_.best, 1)), 0);
  const bool best = validation_loss_ < progress_.best.loss;
  if (best) progress_.best = {validation_loss_, progress_.step, measure_};
  report_.evaluation(progress_, validation, evaluation_seconds_);
  // Before the first step it is the loss of the weights that training starts from.
  return best && job_.trainer.keep_best && progress_.step > 0;
}

/// Writes the trace of this rank to the run folder, or to profiler.profiler_output. A failure to
/// write does not end training.
void Trainer::keep_profile() {
  const std::filesystem::path path = profile_path(job_.profiler, rank_);
  if (path.empty()) return report_.profile(step_.profiler().trace(), "");  // the launcher writes it
  if (const Result<> written = step_.profiler().write(path))
    report_.profile({}, path.string());
  else
    log::warning("profile of rank {}: {}", rank_.rank, written.error().message);
}

Error Trainer::stopped_by_signal() const {
  if (not_saved_)
    return {ErrorCode::interrupted,
            fmt::format("stopped by SIGTERM before it had the weights of another site; the newest "
                        "checkpoint in {} is unchanged; start it again to resume",
                        job_.trainer.save_dir)};
  return {
      ErrorCode::interrupted,
      fmt::format("stopped by SIGTERM after step {}, with a checkpoint in {}; start it again to "
                  "go on",
                  progress_.step, job_.trainer.save_dir)};
}

/// Performs what is due at the end of a step: checks, validation, checkpoints.
Result<> Trainer::after_step(const StepReport& report) {
  const config::TrainerConfig& config = job_.trainer;
  if (step_.profiler().complete()) keep_profile();
  for (const std::string& text : checkpointer_.take_scrub_notes()) report_.note(text);
  if (const std::int64_t moved = checkpointer_.take_moved_best(); moved > 0 && config.keep_best)
    restore_best(moved);
  for (const std::string& text : step_.take_graph_notes()) report_.note(text);
  if (outer_ && outer_->missed_end()) return {};
  SORTIE_ASSIGN_OR_RETURN(const bool back, handle_trouble(report));
  if (back) return report.stop_requested ? std::unexpected(stopped_by_signal()) : Result<>();
  if (progress_.consecutive_skips >= config.max_consecutive_skips)
    return fail(ErrorCode::diverged,
                fmt::format("step {}: {} steps in a row were skipped, this one because {}; lower "
                            "learning_rate_scheduler.learning_rate, or look at the data of these "
                            "steps",
                            report.step, progress_.consecutive_skips, report.skip_reason));
  // If other sites do more steps of a round, this site skips some of the schedule.
  const std::int64_t before = std::exchange(step_before_, report.step);
  const auto due = [&](std::int64_t interval) {
    return interval > 0 && report.step / interval != std::min(before, report.step) / interval;
  };
  const bool stop = report.stop_requested;
  const bool end = last_step() || report.time_is_up || stop;
  rank_.marks->enter(training::Section::reduce);
  if (due(config.replica_check_interval)) {
    SORTIE_ASSIGN_OR_RETURN(const bool differed, compare_replicas(report));
    if (differed) return stop ? std::unexpected(stopped_by_signal()) : Result<>();
  }
  // Not at the end of the run, which is saved on disk.
  if (!end && due(config.memory_checkpoint_interval)) {
    rank_.marks->enter(training::Section::save);
    checkpointer_.begin_memory(progress_);
  }
  if (report.saves_written) {
    rank_.marks->enter(training::Section::save);
    checkpointer_.commit_written();
  }
  SORTIE_TRY(report_saves(checkpointer_.take_outcomes(), /*last=*/false));
  // With several sites both use the outer weights, so they wait for the end of the round.
  const bool border = !outer_ || outer_->at_border();
  evaluation_due_ = evaluation_due_ || due(config.eval_interval);
  save_due_ = save_due_ || due(config.save_interval);
  std::vector<Checkpointer::Series> series;
  bool evaluated = false;
  // After SIGTERM little time is left: only the checkpoint is written.
  if (!validation_.empty() && config.eval_interval > 0 && !stop &&
      (end || (evaluation_due_ && border))) {
    evaluation_due_ = false;
    SORTIE_ASSIGN_OR_RETURN(const bool best, evaluate_and_report());
    if (best) series.push_back(Checkpointer::Series::best);
    evaluated = true;
  }
  const bool regular = end || (save_due_ && border) || report.save_requested;
  if (regular) save_due_ = false;
  if (regular) series.push_back(Checkpointer::Series::regular);
  const auto begin = Clock::now();
  SORTIE_TRY(save(end, series));
  // The time of a checkpoint that is only for the lowest validation loss counts as validation.
  if (evaluated)
    report_.validation_took(evaluation_seconds_ + (regular ? 0.0 : seconds_since(begin)));
  if (regular && !config.save_dir.empty()) report_.save_took(seconds_since(begin));
  if (!stop) return {};
  return std::unexpected(stopped_by_signal());
}

/// Flags that the ranks exchange together with a step's loss.
enum StepFlag : std::size_t { kTimeIsUp, kStop, kSave, kWritten, kNotSealed, kLeftOut, kStepFlags };

/// Returns nullptr if the run has ended without this site.
Result<StepReport*> Trainer::give_step(const TrainingStep::TellFlags& tell,
                                       TrainingStep::Flags flags) {
  if (!outer_) return step_.begin(progress_, tell, flags);
  while (true) {
    SORTIE_ASSIGN_OR_RETURN(const std::optional<StepOrder> order, outer_->next_step(progress_));
    if (!order) return nullptr;
    auto begun = step_.begin(progress_, tell, flags, &*order);
    if (begun) return begun;
    SORTIE_TRY(outer_->step_lost(begun.error(), progress_));
  }
}

void Trainer::report_rounds() {
  for (const training::RoundEvent& event : outer_->take_events()) report_.round(event);
  for (const std::string& text : outer_->take_notes()) report_.note(text);
}

Result<StepReport*> Trainer::begin_step() {
  if (step_.in_flight() == 0) step_begin_ = Clock::now();
  const auto tell = [this](TrainingStep::Flags flags) {
    const double limit = std::chrono::duration<double>(job_.trainer.train_duration).count();
    flags[kTimeIsUp] = communicator_.rank() == 0 && limit > 0 &&
                       trained_seconds_ + seconds_since(step_begin_) >= limit;
    flags[kStop] = signals_ && signals_->stop_requested();
    flags[kSave] = signals_ && signals_->take_save_request();
    flags[kWritten] = checkpointer_.has_written();
    flags[kNotSealed] = !checkpointer_.memory_sealed();
    flags[kLeftOut] = outer_ && outer_->left_out();
  };
  double flags[kStepFlags] = {};
  SORTIE_ASSIGN_OR_RETURN(StepReport* const report, give_step(tell, flags));
  if (!report) return nullptr;
  report->time_is_up = flags[kTimeIsUp] > 0;
  report->stop_requested = flags[kStop] > 0;
  report->save_requested = flags[kSave] > 0;
  report->saves_written = flags[kWritten] == communicator_.size();
  left_out_ = flags[kLeftOut] > 0;
  if (const auto snapshot = checkpointer_.settle_memory(flags[kNotSealed] == 0))
    report_.memory_checkpoint(*snapshot);
  return report;
}

Result<StepReport> Trainer::settle_step() {
  StepReport report = step_.settle(progress_);
  settled_ = true;
  if (outer_) SORTIE_TRY(outer_->step_taken(report, progress_, left_out_));
  step_seconds_ = seconds_since(step_begin_);
  step_begin_ = Clock::now();
  trained_seconds_ += step_seconds_;
  if (signals_ && report.stop_requested) signals_->step_ended();
  return report;
}

Result<StepReport> Trainer::step() {
  SORTIE_ASSIGN_OR_RETURN(const StepReport* const begun, begin_step());
  if (!begun) return fail(ErrorCode::lost, "the run has ended without this site");
  return settle_step();
}

bool Trainer::needs_its_state(const StepReport& report) const {
  if (outer_ || evaluation_due_ || save_due_ || report.save_requested || report.saves_written ||
      report.stop_requested || report.time_is_up || report.step >= job_.trainer.train_iterations)
    return true;
  const config::TrainerConfig& config = job_.trainer;
  return std::ranges::any_of(
      std::array{config.replica_check_interval, config.memory_checkpoint_interval,
                 config.eval_interval, config.save_interval},
      [&](std::int64_t interval) { return interval > 0 && report.step % interval == 0; });
}

Result<Validation> Trainer::evaluate() {
  // A graph of a batch does not wait for weights that are still being gathered.
  if (store().sharded() && !store().gathers()) store().await_values();
  store().refresh_fp8_weights();
  return validate(validation_, {job_.trainer.eval_samples, batch_.micro_batch_size}, context(),
                  step_.passes(), layout_, *rank_.marks,
                  validation_losses_ ? &*validation_losses_ : nullptr);
}

/// Seconds after a SIGTERM for a step to end: the rest of the grace is for the save.
double Trainer::longest_step() const {
  constexpr double kShare = 0.6;
  return kShare * std::chrono::duration<double>(job_.runner.grace).count();
}

Result<> Trainer::end_in_exchange(const Error& error) {
  // Not every rank may have the signal yet: what decides is the same on all of them.
  const bool stopped =
      outer_ && outer_->cancelled() && error.code == ErrorCode::interrupted && progress_.step > 0;
  if (!stopped) return std::unexpected(error);
  if (signals_) signals_->step_ended();
  // The state is that of the checkpoint, maybe without the own weights of the site, which the loop
  // has not restored yet.
  if (!settled_ && progress_.outer.round == loaded_round_)
    return fail(ErrorCode::interrupted,
                "stopped by SIGTERM before its first step; the checkpoint that it started from is "
                "unchanged; start it again to resume");
  SORTIE_TRY(save(/*last=*/true, {Checkpointer::Series::regular}));
  return std::unexpected(stopped_by_signal());
}

Result<> Trainer::run_steps() {
  if (!validation_.empty() && job_.trainer.eval_interval > 0 && progress_.step == 0) {
    SORTIE_TRY(evaluate_and_report());  // what training starts from
    report_.validation_took(evaluation_seconds_);
  }
  if (!job_.trainer.save_dir.empty())
    signals_ = std::make_unique<SaveSignals>(longest_step(), rank_.socket_path);
  bool time_is_up = false;
  while (step_.last_begun(progress_) < job_.trainer.train_iterations && !time_is_up) {
    const auto begun = begin_step();
    if (!begun) return end_in_exchange(begun.error());
    if (!*begun) break;
    const std::size_t stay = needs_its_state(**begun) ? 0 : step_.most_in_flight();
    while (step_.in_flight() > stay) {
      const auto settled = settle_step();
      if (!settled) return end_in_exchange(settled.error());
      const StepReport& report = *settled;
      report_.step(report, progress_, step_seconds_, trained_seconds_);
      if (outer_) report_rounds();
      time_is_up = report.time_is_up;
      SORTIE_TRY(after_step(report));                 // may go back, and drop later steps
      if (signals_) signals_->expect(step_seconds_);  // the next one takes about as long
    }
  }
  if (!outer_ || !outer_->missed_end()) return {};
  report_rounds();
  return report_saves(checkpointer_.finish(), /*last=*/false);
}

Result<> Trainer::run() {
  SORTIE_TRY(start());
  step_.begin_reading(progress_);
  report_.start(facts_, cpu_, progress_, checkpointer_.first_run_id());
  if (const Result<> trained = run_steps(); !trained) {
    // A save in progress still counts if all ranks end here.
    if (communicator_.size() == 1 || trained.error().code == ErrorCode::diverged)
      SORTIE_TRY(report_saves(checkpointer_.finish(), /*last=*/false));
    return trained;
  }
  if (outer_) outer_->leave("training is complete");
  rank_.marks->enter(training::Section::done);
  step_.profiler().end();
  if (step_.profiler().complete()) keep_profile();
  report_.done(progress_, evaluated_step_ == progress_.step ? validation_loss_ : std::nan(""),
               trained_seconds_,
               measure_memory(store(), context().allocator(), checkpointer_.snapshot_bytes(),
                              checkpointer_.memory_bytes()));
  return {};
}

}  // namespace sortie::trainer
