// Trainer: the loop. One step reads as its sentences: batch, forward, backward (and reduce),
// update.
#pragma once

#include <memory>

#include "common/config/schema.h"
#include "common/config/validate.h"
#include "trainer/checkpointer.h"
#include "trainer/metrics/event_sink.h"
#include "trainer/models/mixture.h"
#include "trainer/models/model.h"
#include "trainer/optim/optimizer.h"
#include "trainer/parallel/gradient_reducer.h"
#include "trainer/profiler.h"
#include "trainer/rank_context.h"
#include "trainer/sample_source.h"

namespace sortie::trainer {

/// What one step did, equal on every rank.
struct StepReport {
  std::int64_t step = 0;  // counts from 1
  double loss = 0.0;      // mean over the tokens of the global batch
  double learning_rate = 0.0;
  double grad_norm = 0.0;
  double balance_loss =
      0.0;                // of routers, coefficient included; not part of `loss`, like the next one
  double mtp_loss = 0.0;  // of multi-token prediction
  bool skipped = false;
  bool stop_requested = false;  // rank 0's clock says that train_duration is over
};

/// f32 or bf16 from model.precision and this CPU; explicit bf16 without the instructions is an
/// Error.
Result<DType> choose_precision(const std::string& precision, const CpuFacts& cpu);

class Trainer {
 public:
  /// All references must outlive the trainer; `validation` may be null.
  Trainer(const config::JobConfig& job, const config::BatchPlan& batch, const RankContext& rank,
          Communicator& communicator, EventSink& events, SampleSource& training,
          SampleSource* validation, const CpuFacts& cpu, DType precision, const std::string& build);

  /// From a fresh start or the newest checkpoint to the last step. ErrorCode::diverged after too
  /// many skipped steps in a row.
  Result<> run();

  /// One optimizer step; the seam of the tests.
  Result<StepReport> step();
  /// Mean validation loss in nats per token.
  Result<double> evaluate();

  ParameterStore& store() { return store_; }
  const TrainingProgress& progress() const { return progress_; }
  ExecutionContext& context() { return context_; }
  const LanguageModel& model() const { return model_; }
  /// Initial weights, or those of the newest checkpoint. Called by run().
  Result<> start();

 private:
  Result<double> forward_backward(std::int64_t micro_step);
  Result<Tensor> read_batch(SampleSource& source, std::int64_t first_sample, Tensor& targets);
  /// A save that fails ends training only when it is the last one.
  Result<> save(bool last);
  void report_start();
  void report_step(const StepReport& report, double seconds);
  void report_evaluation(double loss);
  bool last_step() const { return progress_.step >= job_.trainer.train_iterations; }

  const config::JobConfig& job_;
  const config::BatchPlan batch_;
  const RankContext& rank_;
  Communicator& communicator_;
  EventSink& events_;
  SampleSource& training_;
  SampleSource* validation_;
  const CpuFacts cpu_;
  const BitFacts facts_;
  ExecutionContext context_;
  ParameterStore store_;
  LanguageModel model_;
  Optimizer optimizer_;
  std::unique_ptr<GradientReducer> reducer_;
  Checkpointer checkpointer_;
  Profiler profiler_;
  TrainingProgress progress_;
  StepRouting routing_;  // of the step in progress
  std::int64_t last_saved_step_ = -1;
  double trained_seconds_ = 0.0;  // time in steps of this process
  double last_loss_ = 0.0;
};

}  // namespace sortie::trainer
