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

  /// On rank 0, before start(): what checkpoints are to hold, and must agree with.
  void set_tokenizer(RunTokenizer tokenizer) { checkpointer_.set_tokenizer(std::move(tokenizer)); }
  /// Before start(): the ranks are one site of several; it must outlive the trainer. `batch` and
  /// topology.global_batch_size are then those of this site.
  void set_site(const outer::Site& site) { site_ = &site; }

  /// From a fresh start or the newest checkpoint to the last step. ErrorCode::diverged after too
  /// many skipped steps in a row, when replicas differ, or when there is no way back from a step
  /// that went wrong; ErrorCode::interrupted after SIGTERM,
  /// with a checkpoint (only where checkpoints are written is that signal taken).
  Result<> run();

  /// After run() has thrown, because a collective has failed: this rank's state as a checkpoint,
  /// where it is whole and newer than the last one (Checkpointer::save_alone). No collective is
  /// called.
  RankEnd::LastSave save_last();
  /// The same without words and signals: the seam of the tests.
  Result<std::optional<SavedCheckpoint>> save_alone();

  /// One optimizer step; the seam of the tests. No step is in flight before and after it.
  Result<StepReport> step();
  /// The steps that remain, each begun before the one before it has been read where that takes a
  /// wait (TrainingStep); a part of run().
  Result<> run_steps();
  /// What is due after it: policies, checks, validation, checkpoints. Part of that seam.
  Result<> after_step(const StepReport& report);
  /// The losses of the validation sets.
  Result<Validation> evaluate();

  /// With several sites, after start().
  outer::OuterLoop* outer() { return outer_.get(); }
  const Layout& layout() const { return layout_; }
  ParameterStore& store() { return step_.store(); }
  const TrainingProgress& progress() const { return progress_; }
  ExecutionContext& context() { return step_.context(); }
  const LanguageModel& model() const { return step_.model(); }
  PipelineStep& passes() { return step_.passes(); }
  /// Initial weights, or the state of the checkpoint that the run starts from; what can be known to
  /// go wrong later is an error here, before memory is allocated where that is possible. Called by
  /// run(), where it has not been called yet.
  Result<> start();

 private:
  /// What trainer.on_nonfinite and the like say. Whether the run has gone back: nothing else is
  /// then due.
  Result<bool> handle_trouble(const StepReport& report);
  Result<bool> compare_replicas(const StepReport& report);
  Result<> roll_back(const Checkpointer::RollbackOrder& order);
  Error stopped_by_signal() const;
  double longest_step() const;
  /// Whether the loss is the lowest so far, and its checkpoint is to be kept.
  Result<bool> evaluate_and_report();
  /// A best so far that was measured on other samples, or on sequences of another length, counts no
  /// more; gives it where there was one.
  std::optional<BestValidation> forget_other_measure();
  /// The best checkpoint of `step` was not saved: the best so far is then the one that is there.
  void restore_best(std::int64_t step);
  void keep_profile();
  /// A save that fails ends training only when it is the last one: that one is waited for, others
  /// go on beside training.
  Result<> save(bool last, const std::vector<Checkpointer::Series>& series);
  Result<> report_saves(const std::vector<Checkpointer::Outcome>& outcomes, bool last);
  Result<> begin_outer();
  Result<> begin_fp8();
  Result<> settle_products();
  Result<StepReport*> give_step(const TrainingStep::TellFlags& tell, TrainingStep::Flags flags);
  /// Begins a step; what its report says until it is settled. Null: the run has ended without this
  /// site.
  Result<StepReport*> begin_step();
  /// Of the oldest step in flight.
  Result<StepReport> settle_step();
  /// Whether after_step() is to find the state as the step left it: no other may be begun before.
  bool needs_its_state(const StepReport& report) const;
  /// Of a step that failed. Where a signal has ended its wait for other sites, the state of the
  /// last step is saved first.
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
  const std::int64_t measure_;  // of its losses (validation_measure)
  const CpuFacts cpu_;
  const BitFacts facts_;
  const DType precision_;
  TrainingStep step_;
  Result<> prepared_;  // what [lora] and [optimizer] say about parameters; told by start()
  Checkpointer checkpointer_;
  TrainingProgress progress_;
  const outer::Site* site_ = nullptr;
  std::unique_ptr<outer::OuterLoop> outer_;         // with several sites
  std::int64_t step_before_ = 0;                    // the last one that after_step() has seen
  bool evaluation_due_ = false, save_due_ = false;  // at the end of a round
  bool not_saved_ = false;                // what was to be saved last: the site lacked the state
  std::unique_ptr<SaveSignals> signals_;  // of run(), where checkpoints are written
  bool started_ = false;
  bool whole_ = false;           // the state is that of progress_, between two steps
  std::int64_t last_equal_ = 0;  // the step after which all replicas were equal
  std::int64_t evaluated_step_ = -1;
  std::optional<BatchLoss> validation_losses_;
  double validation_loss_ = 0.0;
  double evaluation_seconds_ = 10.0;     // of the last one
  double save_seconds_ = 10.0;           // the longest so far, to the commit
  std::optional<double> stall_seconds_;  // the longest so far for which a save held up training
  double trained_seconds_ = 0.0;         // time in steps of this process
  double step_seconds_ = 0.0;            // of the step that was settled last
  std::chrono::steady_clock::time_point step_begin_{};  // since when time is the next one's
  bool left_out_ = false;                               // of the round, by other sites
};

}  // namespace sortie::trainer
