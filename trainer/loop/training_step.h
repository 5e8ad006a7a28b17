// TrainingStep: one optimizer step over the whole model: batch, forward, backward and reduce,
// update. What happens between steps (checkpoints, validation, signals, reports) is the Trainer's.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/config/schema.h"
#include "common/config/validate.h"
#include "trainer/loop/pipeline_step.h"
#include "trainer/loop/profiler.h"
#include "trainer/loop/rank_context.h"
#include "trainer/loop/step_order.h"
#include "trainer/loop/step_report.h"
#include "trainer/models/mixture.h"
#include "trainer/models/model.h"
#include "trainer/optim/optimizer.h"
#include "trainer/optim/outliers.h"
#include "trainer/parallel/gradient_reducer.h"
#include "trainer/parallel/layout.h"
#include "trainer/parallel/partial_gradients.h"
#include "trainer/parallel/weight_gatherer.h"
#include "trainer/samples/prefetcher.h"
#include "trainer/state/checkpointer.h"

namespace sortie::trainer {

class TrainingStep {
 public:
  /// Declares the model. All references must outlive it.
  TrainingStep(const config::JobConfig& job, const config::BatchPlan& batch,
               const RankContext& rank, const Layout& layout, SampleSource& training);

  /// Adds and freezes what [lora] and [optimizer] say, and gives parameters their groups; once.
  /// ErrorCode::config for what they have wrong. No memory is taken.
  Result<> prepare();
  /// The flat buffers, and what reduces them.
  void allocate(DType precision);
  /// Every replica gets the weights that the others have of a sharded store; collective. After they
  /// were written other than by a step, and the compute copies were refreshed.
  void spread_weights();
  /// One micro-batch of the model's size forward and backward, and no update: what its passes
  /// choose and allocate is there for the steps. Collective; between steps.
  void rehearse();
  /// Goes on from there: the state of the parts that have one beside the weights.
  void resume(const TrainingProgress& progress);
  /// What the run leaves out of its data from here on.
  void set_skipped(std::vector<SkippedSamples> skipped) { skipped_ = std::move(skipped); }
  /// Begins to read ahead from the sample that training goes on with.
  void begin_reading(const TrainingProgress& progress);

  /// What the ranks tell each other at the end of a step, beside its loss: written by the caller
  /// given the seconds that the step took so far, and the sums over all ranks after it.
  using Flags = std::span<double>;
  using TellFlags = std::function<void(double seconds, Flags flags)>;
  /// Takes the step after `progress`, and brings that up to date. Collective; `flags` hold the sums
  /// when it returns. With `order` the step is the one that it says, and where the step begins in
  /// the data is no matter of `progress`. After an error of the order the gradients are dropped.
  Result<StepReport> take(TrainingProgress& progress, const TellFlags& tell, Flags flags,
                          const StepOrder* order = nullptr);

  /// The state is that of `progress`, whole: no update is under way. After an exception in take(),
  /// too.
  bool at_border() const { return !update_under_way_; }

  ExecutionContext& context() { return context_; }
  ParameterStore& store() { return store_; }
  const LanguageModel& model() const { return model_; }
  /// After allocate(): what moves micro-batches through the model, between steps for others to use.
  PipelineStep& passes() { return *passes_; }
  Profiler& profiler() { return profiler_; }

 private:
  struct Batch {
    Tensor tokens, targets;
    std::int64_t counted = 0;  // targets that count, where they are masked
  };
  /// Where in the data the step after `progress` begins.
  std::int64_t position_after(const TrainingProgress& progress) const {
    return progress.consumed_samples + skipped_before(skipped_, progress.step + 1);
  }
  /// Of the model: each trains on samples of its own.
  std::int64_t replicas() const { return batch_.data_parallel_size; }
  /// The samples of a step are cut over micro-steps, then replicas: with another topology they are
  /// the same.
  std::int64_t first_sample_of(std::int64_t micro_step) const {
    return position_ +
           (micro_step * replicas() + layout_.coordinate(Axis::data)) * batch_.micro_batch_size;
  }
  /// A part of the step: recorded where the profiler is active, and marked for who watches.
  class Span {
   public:
    Span(TrainingStep& step, training::Section section)
        : section_(step.profiler_, training::section_name(section).data()) {
      step.marks_.enter(section);
    }

   private:
    Profiler::Section section_;
  };
  /// The next micro-batch of training.
  Result<Batch> next_batch(std::int64_t first_sample);
  /// The targets that count in the step's global batch; reads its micro-batches where they have to
  /// be counted.
  Result<std::int64_t> count_targets(std::int64_t micro_steps, std::vector<Batch>& batches);
  /// All passes of the step. loss f64 [2] += the sum and the number of its losses, on the last
  /// stage.
  Result<> pass_all(std::int64_t micro_steps, std::vector<Batch> batches, std::int64_t targets,
                    Tensor& loss);
  void expect_routing();
  void pass_forward(const PipelineAction& action, const Batch& batch, std::int64_t micro_steps,
                    std::int64_t targets, Tensor& loss);
  void pass_backward(const PipelineAction& action);
  void begin_reading_at(std::int64_t position, std::int64_t end);
  Result<double> sum_over_sites(const StepOrder& order, const Tensor& loss, std::int64_t targets);
  void agree(StepReport& report, double loss_sum, std::int64_t targets, Flags flags);
  std::vector<Communicator::Handle> sum_routing(Tensor& losses);
  void update(StepReport& report, double rate);
  /// Why the update must not be made.
  struct Judgement {
    StepTrouble trouble = StepTrouble::none;
    std::string reason{};
  };
  Judgement judge(const StepReport& report) const;
  bool is_spike(double loss) const;

  const config::JobConfig& job_;
  const config::BatchPlan batch_;
  const Layout& layout_;
  ProgressMarks& marks_;
  SampleSource& training_;
  ExecutionContext context_;
  ParameterStore store_;
  LanguageModel model_;
  Optimizer optimizer_;
  StageFacts stage_facts_;
  OutlierDetector losses_, gradient_norms_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<PipelineStep> passes_;
  std::unique_ptr<WeightGatherer> gatherer_;
  std::unique_ptr<Prefetcher> prefetcher_;  // of training_, from begin_reading() on
  Profiler profiler_;
  bool update_under_way_ = false;
  StepRouting routing_;  // of the step in progress
  std::vector<SkippedSamples> skipped_;
  std::int64_t position_ = 0;       // in the data, where it begins
  std::int64_t read_position_ = 0;  // where the prefetcher's next step begins
};

}  // namespace sortie::trainer
