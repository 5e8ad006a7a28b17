// TrainingStep: one optimizer step over the whole model: batch, forward, backward and reduce,
// update. What happens between steps (checkpoints, validation, signals, reports) is the Trainer's.
//
// A step is begun, and settled: where work goes on beside the host (a GPU), begin() returns as soon
// as the device has been given all of it, update included, and settle() reads what it did. The next
// step may be begun before that, so that the device always has something to do.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/config/schema.h"
#include "common/config/validate.h"
#include "trainer/loop/fp8_histories.h"
#include "trainer/loop/pipeline_step.h"
#include "trainer/loop/profiler.h"
#include "trainer/loop/rank_context.h"
#include "trainer/loop/step_order.h"
#include "trainer/loop/step_report.h"
#include "trainer/models/mixture.h"
#include "trainer/models/model.h"
#include "trainer/ops/copy.h"
#include "trainer/optim/optimizer.h"
#include "trainer/optim/update_gate.h"
#include "trainer/parallel/gradient_reducer.h"
#include "trainer/parallel/layout.h"
#include "trainer/parallel/partial_gradients.h"
#include "trainer/parallel/weight_gatherer.h"
#include "trainer/samples/prefetcher.h"
#include "trainer/state/checkpointer.h"
#include "trainer/tensor/repeated_work.h"

namespace sortie::trainer {

class TrainingStep {
 public:
  /// Declares the model. All references must outlive it.
  TrainingStep(const config::JobConfig& job, const config::BatchPlan& batch,
               const RankContext& rank, const Layout& layout, SampleSource& training);
  ~TrainingStep();
  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

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

  /// What the ranks tell each other at the end of a step, beside its loss: written by the caller,
  /// and the sums over all ranks after it.
  using Flags = std::span<double>;
  using TellFlags = std::function<void(Flags flags)>;
  /// Begins the step after `progress` and those in flight. Collective; `flags` hold the sums when
  /// it returns. With `order` the step is the one that it says, and where the step begins in the
  /// data is no matter of `progress`. After an error of the order the gradients are dropped. The
  /// report says what is known of the step by now, and may be added to until it is settled.
  Result<StepReport*> begin(const TrainingProgress& progress, const TellFlags& tell, Flags flags,
                            const StepOrder* order = nullptr);
  /// Waits for the oldest step in flight, and brings `progress` up to date.
  StepReport settle(TrainingProgress& progress);
  /// How many steps were begun and not settled.
  std::size_t in_flight() const { return in_flight_.size(); }
  /// How many may be while the next one is begun: what a step did is read so many steps late.
  std::size_t most_in_flight() const { return context_.runs_beside_host() ? 1 : 0; }
  /// The newest step that was begun.
  std::int64_t last_begun(const TrainingProgress& progress) const {
    return in_flight_.empty() ? progress.step : in_flight_.back().report.step;
  }
  /// Forgets the steps in flight, whose updates the state may have: it is loaded anew. Returns
  /// whether one of them was to be saved.
  bool drop_in_flight();

  /// The state is that of `progress`, whole: no step is in flight, no update is under way. After an
  /// exception in begin(), too.
  bool at_border() const { return !update_under_way_ && in_flight_.empty(); }

  /// What keeps parts of a step from being CUDA graphs, on a GPU where they are wanted: of this
  /// job, after allocate(), and what captures have run into since the last call.
  std::vector<std::string> take_graph_notes();

  /// Whether a micro-batch's way through the model may be one, and so that of a batch of a
  /// validation.
  bool repeats_passes() const { return fixed_.tokens.defined(); }

  ExecutionContext& context() { return context_; }
  ParameterStore& store() { return store_; }
  const LanguageModel& model() const { return model_; }
  /// After allocate(): what moves micro-batches through the model, between steps for others to use.
  PipelineStep& passes() { return *passes_; }
  Profiler& profiler() { return profiler_; }
  Fp8Histories& fp8_histories() { return fp8_histories_; }

 private:
  struct Batch {
    Tensor tokens, targets;
    std::int64_t counted = 0;  // targets that count, where they are masked
  };
  /// What is read of a step, f64: sum and number of its losses, squared gradient norm, losses
  /// beside the loss and dropped choices (StepRouting::sums); behind them what its gate says.
  static constexpr std::int64_t kLoss = 0, kSquaredNorm = 2, kOtherLosses = 3, kSums = 6;
  /// What the passes of a micro-batch read that is another one's in the next.
  struct PassInputs {
    Tensor tokens, targets;
    Tensor first_sample;  // i64 [1]
    Tensor grad_scale;    // f32 [1]: 1 / targets of the step
  };
  struct InFlight {
    StepReport report;
    ops::LateValues<double> values;
    Communicator::Handle summed;  // of the last collective that they are from
    std::int64_t micro_steps = 0, targets = 0;
    bool routed = false;   // it has losses beside the loss
    double choices = 0.0;  // of its routers, over all ranks; 0: experts have no capacity
  };
  /// Samples that were trained on once all steps in flight are done.
  std::int64_t consumed(const TrainingProgress& progress) const;
  /// Where in the data the next step begins.
  std::int64_t position_after(const TrainingProgress& progress) const {
    return consumed(progress) + skipped_before(skipped_, last_begun(progress) + 1);
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
  /// The same where a micro-batch's passes leave nothing behind: as a graph where they can be.
  Result<> pass_one_by_one(std::int64_t micro_steps, std::vector<Batch> batches,
                           std::int64_t targets, Tensor& loss);
  PassInputs inputs_of(const Batch& batch, std::int64_t micro_batch, std::int64_t targets);
  ForwardContext forward_context(const PassInputs& inputs, std::int64_t micro_steps) const;
  void begin_graphs();
  void expect_routing();
  void pass_forward(const PipelineAction& action, const Batch& batch, std::int64_t micro_steps,
                    std::int64_t targets, Tensor& loss);
  void pass_backward(const PipelineAction& action);
  void begin_reading_at(std::int64_t position, std::int64_t end);
  Result<double> sum_over_sites(const StepOrder& order, const Tensor& loss, std::int64_t targets);
  Communicator::Handle agree(Tensor values, const TellFlags& tell, Flags flags);
  void sum_routing(Tensor& losses);
  void update(std::int64_t step, double rate);
  double count_choices();

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
  UpdateGate gate_;
  Fp8Histories fp8_histories_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<PipelineStep> passes_;
  std::unique_ptr<WeightGatherer> gatherer_;
  std::unique_ptr<Prefetcher> prefetcher_;  // of training_, from begin_reading() on
  Profiler profiler_;
  std::deque<InFlight> in_flight_;
  bool update_under_way_ = false;
  Tensor values_;  // what is read of the step in progress, see begin()
  // Where a GPU repeats the passes of micro-batches, and the update.
  RepeatedWork passes_work_{"a micro-batch's way through the model"}, update_work_{"the update"};
  RepeatedWork last_passes_work_{"the last micro-batch's way through the model"};  // reduces beside
  PassInputs fixed_;  // theirs; undefined on other devices
  float router_scale_ = 0.0f;
  double choices_of_pass_ = 0.0;
  std::vector<std::string> graph_notes_;
  StepRouting routing_;  // of the step in progress
  std::vector<SkippedSamples> skipped_;
  std::int64_t position_ = 0;       // in the data, where it begins
  std::int64_t read_position_ = 0;  // where the prefetcher's next step begins
};

}  // namespace sortie::trainer
