// Trainer: the loop (trainer.cc). One step reads as its sentences (trainer_step.cc): batch,
// forward, backward (and reduce), update.
#pragma once

#include <memory>

#include "common/config/schema.h"
#include "common/config/validate.h"
#include "trainer/loop/profiler.h"
#include "trainer/loop/rank_context.h"
#include "trainer/loop/run_report.h"
#include "trainer/loop/signals.h"
#include "trainer/loop/step_report.h"
#include "trainer/loop/validation.h"
#include "trainer/models/mixture.h"
#include "trainer/models/model.h"
#include "trainer/optim/optimizer.h"
#include "trainer/optim/outliers.h"
#include "trainer/parallel/gradient_reducer.h"
#include "trainer/samples/prefetcher.h"
#include "trainer/state/checkpointer.h"

namespace sortie::trainer {

/// f32 or bf16 from model.precision and this CPU; explicit bf16 without the instructions is an
/// Error.
Result<DType> choose_precision(const std::string& precision, const CpuFacts& cpu);

class Trainer {
 public:
  /// All references must outlive the trainer; `validation` may be empty.
  Trainer(const config::JobConfig& job, const config::BatchPlan& batch, const RankContext& rank,
          Communicator& communicator, EventSink& events, SampleSource& training,
          std::vector<ValidationSet> validation, const CpuFacts& cpu, DType precision,
          const std::string& build);

  /// On rank 0, before start(): what checkpoints are to hold, and must agree with.
  void set_tokenizer(RunTokenizer tokenizer) { checkpointer_.set_tokenizer(std::move(tokenizer)); }

  /// From a fresh start or the newest checkpoint to the last step. ErrorCode::diverged after too
  /// many skipped steps in a row, or when replicas differ; ErrorCode::interrupted after SIGTERM,
  /// with a checkpoint (only where checkpoints are written is that signal taken).
  Result<> run();

  /// One optimizer step; the seam of the tests.
  Result<StepReport> step();
  /// The losses of the validation sets.
  Result<Validation> evaluate();

  ParameterStore& store() { return store_; }
  const TrainingProgress& progress() const { return progress_; }
  ExecutionContext& context() { return context_; }
  const LanguageModel& model() const { return model_; }
  /// Initial weights, or the state of the checkpoint that the run starts from; what can be known to
  /// go wrong later is an error here, before memory is allocated where that is possible. Called by
  /// run(), where it has not been called yet.
  Result<> start();

 private:
  /// The flat buffers, and what reduces them.
  void allocate();
  struct Batch {
    Tensor tokens, targets;
  };
  /// The samples of a step are cut over micro-steps, then ranks: with another topology they are the
  /// same.
  std::int64_t first_sample_of(std::int64_t micro_step) const {
    return progress_.consumed_samples +
           (micro_step * communicator_.size() + communicator_.rank()) * batch_.micro_batch_size;
  }
  /// The next micro-batch of training.
  Result<Batch> next_batch(std::int64_t first_sample);
  /// Begins to read ahead from the sample that training goes on with.
  void begin_reading();
  /// The targets that count in the step's global batch; reads its micro-batches where they have to
  /// be counted.
  Result<std::int64_t> count_targets(std::int64_t micro_steps, std::vector<Batch>& batches);
  Result<double> forward_backward(std::int64_t micro_step, std::int64_t micro_steps,
                                  std::vector<Batch>& batches, std::int64_t targets);
  void agree_on_routing(StepReport& report, std::int64_t micro_steps, std::int64_t targets);
  void agree(StepReport& report, double loss_sum, std::int64_t targets, double seconds);
  void update(StepReport& report);
  std::string skip_reason(const StepReport& report) const;

  Result<> after_step(const StepReport& report);
  /// Whether the loss is the lowest so far, and its checkpoint is to be kept.
  Result<bool> evaluate_and_report();
  void keep_profile();
  /// A save that fails ends training only when it is the last one: that one is waited for, others
  /// go on beside training.
  Result<> save(bool last, const std::vector<Checkpointer::Series>& series);
  Result<> report_saves(const std::vector<Checkpointer::Outcome>& outcomes, bool last);
  Result<> run_steps();
  bool last_step() const { return progress_.step >= job_.trainer.train_iterations; }

  const config::JobConfig& job_;
  const config::BatchPlan batch_;
  const RankContext& rank_;
  Communicator& communicator_;
  RunReport report_;
  SampleSource& training_;
  std::vector<ValidationSet> validation_;
  const CpuFacts cpu_;
  const BitFacts facts_;
  const DType precision_;
  ExecutionContext context_;
  ParameterStore store_;
  LanguageModel model_;
  Result<> prepared_;  // of what [lora] and [optimizer] say about parameters; told by start()
  Optimizer optimizer_;
  OutlierDetector losses_, gradient_norms_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<Prefetcher> prefetcher_;  // of training_, from begin_reading() on
  Checkpointer checkpointer_;
  Profiler profiler_;
  TrainingProgress progress_;
  StepRouting routing_;                   // of the step in progress
  std::unique_ptr<SaveSignals> signals_;  // of run(), where checkpoints are written
  bool started_ = false;
  std::int64_t evaluated_step_ = -1;
  double validation_loss_ = 0.0;
  double evaluation_seconds_ = 10.0;  // of the last one
  double save_seconds_ = 10.0;        // the longest so far, to the commit
  double trained_seconds_ = 0.0;      // time in steps of this process
};

}  // namespace sortie::trainer
