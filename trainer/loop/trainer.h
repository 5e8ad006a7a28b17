// Trainer: the loop around training steps: the start, validation, checkpoints, signals, reports.
#pragma once

#include <chrono>
#include <memory>

#include "common/config/schema.h"
#include "common/config/validate.h"
#include "trainer/loop/compute_device.h"
#include "trainer/loop/rank_context.h"
#include "trainer/loop/rank_end.h"
#include "trainer/loop/run_report.h"
#include "trainer/loop/signals.h"
#include "trainer/loop/step_report.h"
#include "trainer/loop/training_step.h"
#include "trainer/loop/validation.h"
#include "trainer/outer/outer_loop.h"
#include "trainer/state/checkpointer.h"

namespace sortie::trainer {

class Trainer {
 public:
  /// All references must outlive the trainer; `validation` may be empty.
  Trainer(const config::JobConfig& job, const config::BatchPlan& batch, const RankContext& rank,
          Communicator& communicator, EventSink& events, SampleSource& training,
          std::vector<ValidationSet> validation, const CpuFacts& cpu, DType precision,
          const std::string& build);

  /// On rank 0, before start(): the tokenizer that checkpoints will contain, and must agree with.
  void set_tokenizer(RunTokenizer tokenizer) { checkpointer_.set_tokenizer(std::move(tokenizer)); }
  /// Before start(): makes the ranks one site of several. `site` must outlive the trainer. `batch`
  /// and topology.global_batch_size are then those of this site.
  void set_site(const outer::Site& site) { site_ = &site; }

  /// Trains from a fresh start or the newest checkpoint to the last step. ErrorCode::diverged after
  /// too many skipped steps in a row, if replicas differ, or if the run can not go back from a step
  /// that went wrong. ErrorCode::interrupted after SIGTERM, with a checkpoint; this signal is
  /// handled only if checkpoints are written.
  Result<> run();

  /// Call after run() has thrown because a collective has failed: saves this rank's state as a
  /// checkpoint, if it is complete and newer than the last one (Checkpointer::save_alone). Calls no
  /// collective.
  RankEnd::LastSave save_last();
  /// The same without messages and signals, for tests.
  Result<std::optional<SavedCheckpoint>> save_alone();

  /// Performs one optimizer step, for tests. No step is in flight before or after it.
  Result<StepReport> step();
  /// Performs the remaining steps; a part of run(). If reading a step's results takes a wait, the
  /// next step begins before that (TrainingStep).
  Result<> run_steps();
  /// Performs what is due after a step: policies, checks, validation, checkpoints. Also for tests.
  Result<> after_step(const StepReport& report);
  /// Computes the losses of the validation sets.
  Result<Validation> evaluate();

  /// nullptr with a single site and before start().
  outer::OuterLoop* outer() { return outer_.get(); }
  const Layout& layout() const { return layout_; }
  ParameterStore& store() { return step_.store(); }
  const TrainingProgress& progress() const { return progress_; }
  ExecutionContext& context() { return step_.context(); }
  const LanguageModel& model() const { return step_.model(); }
  PipelineStep& passes() { return step_.passes(); }
  /// Checks what can be known of this rank alone. Called by start().
  Result<> check_own() const;
  /// Chooses where training starts, and checks trainer.save_dir. Collective; the result is the same
  /// on all ranks. Idempotent; called by start().
  Result<> choose_start();
  /// Sets initial weights, or loads the checkpoint that the run starts from. Problems that can be
  /// foreseen are an error here, before memory is allocated where possible. Idempotent; called by
  /// run().
  Result<> start();

 private:
  /// Applies trainer.on_nonfinite and similar policies. Returns whether the run has gone back to an
  /// earlier step: nothing else is then due.
  Result<bool> handle_trouble(const StepReport& report);
  Result<bool> compare_replicas(const StepReport& report);
  Result<> roll_back(const Checkpointer::RollbackOrder& order);
  Error stopped_by_signal() const;
  double longest_step() const;
  /// Returns whether the loss is the lowest so far and its checkpoint must be kept.
  Result<bool> evaluate_and_report();
  /// Discards the best loss so far if it was measured on other samples, or on sequences of another
  /// length. Returns it if it was discarded.
  std::optional<BestValidation> forget_other_measure();
  /// The best checkpoint of `step` was not saved, or is damaged: sets the best loss to that of the
  /// one that exists.
  void restore_best(std::int64_t step);
  void keep_profile();
  /// The last save blocks, and its failure ends training. Other saves run concurrently with
  /// training, and their failure is only reported.
  Result<> save(bool last, const std::vector<Checkpointer::Series>& series);
  Result<> report_saves(const std::vector<Checkpointer::Outcome>& outcomes, bool last);
  Result<> begin_outer();
  Result<> begin_fp8();
  Result<> settle_products();
  Result<StepReport*> give_step(const TrainingStep::TellFlags& tell, TrainingStep::Flags flags);
  /// Begins a step. Returns its preliminary report, valid until the step is settled; nullptr if the
  /// run has ended without this site.
  Result<StepReport*> begin_step();
  /// Settles the oldest step in flight.
  Result<StepReport> settle_step();
  /// Whether after_step() needs the state as the step left it, so that no other step may begin
  /// before.
  bool needs_its_state(const StepReport& report) const;
  /// Returns the error of a step that failed. If a signal has ended its wait for other sites, the
  /// state of the last step is saved first, if it is not that of the start.
  Result<> end_in_exchange(const Error& error);
  void report_rounds();
  bool last_step() const { return progress_.step >= job_.trainer.train_iterations; }

  const config::JobConfig& job_;
  const config::BatchPlan batch_;
  const RankContext& rank_;
  Communicator& communicator_;
  const Layout layout_;
  RunReport report_;
  std::vector<ValidationSet> validation_;
  const std::int64_t measure_;  // validation_measure() of these sets
  const CpuFacts cpu_;
  const BitFacts facts_;
  const DType precision_;
  TrainingStep step_;
  Result<> prepared_;  // the result of step_.prepare(); returned by check_own()
  Checkpointer checkpointer_;
  TrainingProgress progress_;
  const outer::Site* site_ = nullptr;
  std::unique_ptr<outer::OuterLoop> outer_;         // with several sites
  std::int64_t step_before_ = 0;                    // last step that after_step() has handled
  bool evaluation_due_ = false, save_due_ = false;  // at the end of a round
  std::optional<Result<>> chosen_;                  // the result of choose_start()
  bool settled_ = false;                            // a step was settled since the start
  std::int64_t loaded_round_ = 0;                   // of the outer weights at the start
  bool not_saved_ = false;                // the last save was skipped: the site lacked the state
  std::unique_ptr<SaveSignals> signals_;  // in run(), if checkpoints are written
  bool started_ = false;
  bool whole_ = false;           // the state is complete, and that of progress_
  std::int64_t last_equal_ = 0;  // the step after which all replicas were equal
  std::int64_t evaluated_step_ = -1;
  std::optional<ValidationLosses> validation_losses_;
  double validation_loss_ = 0.0;
  double evaluation_seconds_ = 10.0;     // of the last one
  double save_seconds_ = 10.0;           // the longest save so far, to its commit
  std::optional<double> stall_seconds_;  // longest time so far that a save held up training
  double trained_seconds_ = 0.0;         // time in steps of this process
  double step_seconds_ = 0.0;            // of the last settled step
  std::chrono::steady_clock::time_point step_begin_{};  // time counts for the next step from here
  bool left_out_ = false;                               // the run continues without this site
};

}  // namespace sortie::trainer
