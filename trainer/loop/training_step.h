// TrainingStep: one optimizer step over the whole model: batch, forward, backward and reduce,
// update. The Trainer does what is due between steps (checkpoints, validation, signals, reports).
//
// A step is begun and then settled. If work runs concurrently with the host (a GPU), begin()
// returns as soon as all work of the step, update included, is enqueued on the device, and settle()
// reads the results. The next step may begin before that, so that the device always has work.
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

  /// Adds and freezes parameters according to [lora] and [optimizer], and assigns parameters to
  /// groups. Call once. ErrorCode::config for invalid settings. Allocates no memory.
  Result<> prepare();
  /// Allocates the flat buffers and creates what reduces them.
  void allocate(DType precision);
  /// Distributes the weights of a sharded store to all replicas. Call after they were written other
  /// than by a step and the compute copies were refreshed. Collective.
  void spread_weights();
  /// Runs one micro-batch of the model's size forward and backward, without an update, so that what
  /// its passes choose and allocate is ready for the steps. Call between steps only. Collective.
  void rehearse();
  /// Restores the state of the parts that have some in addition to the weights.
  void resume(const TrainingProgress& progress);
  /// Sets the samples that the run skips from now on.
  void set_skipped(std::vector<SkippedSamples> skipped) { skipped_ = std::move(skipped); }
  /// Begins to read ahead from the sample at which training continues.
  void begin_reading(const TrainingProgress& progress);

  /// Values that the ranks exchange at the end of a step, in addition to its loss: TellFlags writes
  /// this rank's values; afterwards they are the sums over all ranks.
  using Flags = std::span<double>;
  using TellFlags = std::function<void(Flags flags)>;
  /// Begins the step after `progress` and those in flight. Collective; `flags` hold the sums when
  /// it returns. With `order`, the step and its position in the data are those of the order. If the
  /// order's sum over sites fails, the gradients are dropped. Returns the preliminary report of the
  /// step, which the caller may add to until the step is settled.
  Result<StepReport*> begin(const TrainingProgress& progress, const TellFlags& tell, Flags flags,
                            const StepOrder* order = nullptr);
  /// Waits for the oldest step in flight, updates `progress` and returns the step's report.
  StepReport settle(TrainingProgress& progress);
  /// Number of steps that were begun and not settled.
  std::size_t in_flight() const { return in_flight_.size(); }
  /// Maximum of these while the next step is begun: the results of a step are read this many steps
  /// late.
  std::size_t most_in_flight() const { return context_.runs_beside_host() ? 1 : 0; }
  /// The newest step that was begun.
  std::int64_t last_begun(const TrainingProgress& progress) const {
    return in_flight_.empty() ? progress.step : in_flight_.back().report.step;
  }
  /// Discards the steps in flight. The state may have their updates, so it must be loaded anew.
  /// Returns whether one of them had a save request.
  bool drop_in_flight();

  /// Whether the state is complete and that of `progress`: no step is in flight, and no update in
  /// progress. Also valid after an exception in begin().
  bool at_border() const { return !update_under_way_ && in_flight_.empty(); }

  /// Returns why parts of a step are not CUDA graphs, on a GPU for which they are enabled: after
  /// allocate(), reasons in this job, and failures of captures since the last call.
  std::vector<std::string> take_graph_notes();

  /// Whether the passes of a micro-batch may be a graph, and so those of a batch of a validation.
  bool repeats_passes() const { return fixed_.tokens.defined(); }

  ExecutionContext& context() { return context_; }
  ParameterStore& store() { return store_; }
  const LanguageModel& model() const { return model_; }
  /// The passes of micro-batches through the model, after allocate(); others may use them between
  /// steps.
  PipelineStep& passes() { return *passes_; }
  Profiler& profiler() { return profiler_; }
  Fp8Histories& fp8_histories() { return fp8_histories_; }

 private:
  struct Batch {
    Tensor tokens, targets;
    std::int64_t counted = 0;  // targets that count, if they are masked
  };
  /// Layout of the f64 values that are read of a step: sum and number of its losses, squared
  /// gradient norm, other losses and dropped choices (StepRouting::sums), then the outcome of its
  /// gate.
  static constexpr std::int64_t kLoss = 0, kSquaredNorm = 2, kOtherLosses = 3, kSums = 6;
  /// Inputs of the passes that differ from micro-batch to micro-batch.
  struct PassInputs {
    Tensor tokens, targets;
    Tensor first_sample;  // i64 [1]
    Tensor grad_scale;    // f32 [1]: 1 / targets of the step
  };
  struct InFlight {
    StepReport report;
    ops::LateValues<double> values;
    Communicator::Handle summed;  // the last collective of these values
    std::int64_t micro_steps = 0, targets = 0;
    bool routed = false;   // it has other losses
    double choices = 0.0;  // of its routers, over all ranks; 0 = experts have no capacity
  };
  /// Number of samples that are consumed once all steps in flight are done.
  std::int64_t consumed(const TrainingProgress& progress) const;
  /// Position in the data at which the next step begins.
  std::int64_t position_after(const TrainingProgress& progress) const {
    return consumed(progress) + skipped_before(skipped_, last_begun(progress) + 1);
  }
  /// Replicas of the model; each trains on different samples.
  std::int64_t replicas() const { return batch_.data_parallel_size; }
  /// First sample of this rank in a micro-step. The samples of a step are divided over micro-steps,
  /// then over replicas: they are the same with every topology.
  std::int64_t first_sample_of(std::int64_t micro_step) const {
    return position_ +
           (micro_step * replicas() + layout_.coordinate(Axis::data)) * batch_.micro_batch_size;
  }
  /// Scope of a section of the step: recorded if the profiler is active, and entered in the
  /// progress marks. On a GPU it adds a mark to the compute stream, so it must begin before the
  /// stream is made to wait for what the section waits for.
  class Span {
   public:
    Span(TrainingStep& step, training::Section section)
        : section_(step.profiler_, training::section_name(section).data()) {
      step.marks_.enter(section);
    }

   private:
    Profiler::Section section_;
  };
  /// Reads the micro-batch that begins at `first_sample`.
  Result<Batch> next_batch(std::int64_t first_sample);
  /// Returns the number of targets that count in the step's global batch. Reads its micro-batches
  /// into `batches` if the targets have to be counted.
  Result<std::int64_t> count_targets(std::int64_t micro_steps, std::vector<Batch>& batches);
  /// Performs all passes of the step. On the last stage, adds the sum and the number of its losses
  /// to `loss`, f64 [2].
  Result<> pass_all(std::int64_t micro_steps, std::vector<Batch> batches, std::int64_t targets,
                    Tensor& loss);
  /// The same if passes_->one_by_one(): as a graph if possible.
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
  Tensor values_;  // what is read of the current step, see begin()
  // Passes of micro-batches, and the update, if a GPU repeats them.
  RepeatedWork passes_work_{"a micro-batch's way through the model"}, update_work_{"the update"};
  RepeatedWork last_passes_work_{"the last micro-batch's way through the model"};  // and reduces
  PassInputs fixed_;  // inputs of graphs; undefined without
  float router_scale_ = 0.0f;
  double choices_of_pass_ = 0.0;
  std::vector<std::string> graph_notes_;
  StepRouting routing_;  // of the current step
  std::vector<SkippedSamples> skipped_;
  std::int64_t position_ = 0;       // where the current step begins in the data
  std::int64_t read_position_ = 0;  // where the prefetcher's next step begins
};

}  // namespace sortie::trainer
