// PipelineStep: the passes of micro-batches through this rank's part of the model, in the order of
// the pipeline's schedule. A whole model is a pipeline of one stage: forward and backward of one
// micro-batch after another.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "trainer/models/model.h"
#include "trainer/parallel/layer_gatherer.h"
#include "trainer/parallel/layout.h"
#include "trainer/parallel/schedule.h"
#include "trainer/parallel/stage_exchange.h"
#include "trainer/parallel/tied_gradient.h"

namespace sortie::trainer {

class PipelineStep {
 public:
  /// One micro-batch of whole sequences: i32 [B, T].
  struct MicroBatch {
    Tensor tokens, targets;
  };
  /// State of one micro-batch in one run, from its forward to its backward pass.
  struct Pass {
    Pass(ExecutionContext& execution, Graph::Mode mode) : graph(execution, mode) {}
    Graph graph;
    ForwardContext context;
    std::shared_ptr<Grad> in;  // of the previous run's hidden state; nullptr in the first run
    Var out;                   // without its data; empty in the last run
    Tensor sums;               // for the balance of experts
  };

  /// All references must outlive it. `store` must be finalized. If it gathers units, weights may be
  /// used only within steps from now on.
  PipelineStep(ExecutionContext& context, const Layout& layout, ParameterStore& store,
               const LanguageModel& model, StageFacts facts = {}, bool zero_bubble = false);

  /// Begins a training step with micro-batches of `rows` tokens, including those of other ranks
  /// that share the sequences. Returns its actions in order; the caller performs all of them and
  /// then calls finish(). All ranks of a replica make the same call.
  const std::vector<PipelineAction>& begin_training(std::int64_t micro_batches, std::int64_t rows);
  /// The same with forward passes only; `rows` returns the tokens of each micro-batch.
  const std::vector<PipelineAction>& begin_forward(
      std::int64_t micro_batches, std::function<std::int64_t(std::int64_t micro_batch)> rows);

  /// Waits for the input of an action if another stage produces it.
  void await(const PipelineAction& action);
  /// Performs a forward pass. In the last run, adds the loss of the micro-batch to `loss`, f64 [2],
  /// as LanguageModel::loss() does.
  void forward(const PipelineAction& action, const MicroBatch& batch, const ForwardContext& context,
               float grad_scale, Tensor& loss);
  /// Performs a backward pass. Returns the state of the pass.
  std::unique_ptr<Pass> backward(const PipelineAction& action);
  /// Computes the gradients of weights that a backward pass has left, if the schedule separates
  /// them.
  void weights(const PipelineAction& action);
  /// Whether no later action of this stage runs the micro-batch forward.
  bool last_of_stage(const PipelineAction& action) const {
    return action.run + 1 == shape_.interleave;
  }
  /// Whether no forward pass is left: gradients without a pending use are then final.
  bool all_forward() const { return forward_left_ == 0; }
  const LanguageModel& model() const { return model_; }
  /// Whether each micro-batch passes forward and backward before the next one, and its passes keep
  /// no memory: the next one can use the same memory.
  bool one_by_one() const { return !exchange_ && !gatherer_ && !shape_.zero_bubble; }
  /// If one_by_one(): discards what the passes of a micro-batch have changed on the host, after an
  /// exception.
  void drop_passes();
  bool several_stages() const { return exchange_ != nullptr; }
  /// Makes progress with messages; cheap.
  void poll() {
    if (exchange_) exchange_->poll();
    if (sharers_ != nullptr) sharers_->communicator.poll();
    if (gatherer_) gatherer_->poll();
  }
  /// Sums the gradient that both the first and the last stage have, and waits until all messages
  /// are received. If the store gathers units, its gradients are then the sums over the replicas,
  /// and nothing is left to reduce.
  void finish();

  /// Call before weights are changed other than by the model. No-op unless the store gathers units.
  void forget_weights() {
    if (gatherer_) gatherer_->forget();
  }
  /// Call after the step that changed weights: begins to gather the first weights of the next one.
  /// No-op unless the store gathers units.
  void gather_ahead() {
    if (gatherer_) gatherer_->gather_ahead();
  }
  /// nullptr if weights are not gathered.
  const LayerGatherer* gatherer() const { return gatherer_ ? &*gatherer_ : nullptr; }

 private:
  const std::vector<PipelineAction>& begin(
      StageExchange::Pass pass, std::int64_t micro_batches,
      std::function<std::int64_t(std::int64_t micro_batch)> rows);
  bool first_run(int run) const { return model_.part().first && run == 0; }
  bool last_run(int run) const { return model_.part().last && run + 1 == shape_.interleave; }
  void balance_over_stages(Pass& pass, const PipelineAction& action, Tensor sums, double tokens);

  ExecutionContext& context_;
  ParameterStore& store_;
  const LanguageModel& model_;
  const int stage_;
  const ContextGroup* sharers_;  // share the tokens of each sequence; nullptr = none
  const StageFacts facts_;
  std::unique_ptr<StageExchange> exchange_;  // nullptr with one stage
  TiedGradient tied_;
  std::optional<LayerGatherer> gatherer_;
  StageExchange::Pass kind_ = StageExchange::Pass::training;
  PipelineShape shape_;
  std::vector<PipelineAction> actions_;
  std::int64_t forward_left_ = 0;
  StageParcel arrived_;                                                   // for the next action
  std::map<std::pair<std::int64_t, int>, std::unique_ptr<Pass>> passes_;  // by micro-batch and run
  std::map<std::int64_t, std::deque<std::function<void()>>> weights_left_;  // by micro-batch
};

}  // namespace sortie::trainer
