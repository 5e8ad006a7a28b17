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
  /// Of one micro-batch through one run, from its way forward to its way back.
  struct Pass {
    Pass(ExecutionContext& execution, Graph::Mode mode) : graph(execution, mode) {}
    Graph graph;
    ForwardContext context;
    std::shared_ptr<Grad> in;  // of the hidden state from the run before; null = the first run
    Var out;                   // its data is gone; empty = the last run
    Tensor sums;               // of balanced experts
  };

  /// All references outlive it; the store is finalized. Of one that gathers its units all uses of
  /// weights are within steps from here on.
  PipelineStep(ExecutionContext& context, const Layout& layout, ParameterStore& store,
               const LanguageModel& model, StageFacts facts = {}, bool zero_bubble = false);

  /// Begins a step of training with micro-batches of `rows` tokens, those of other ranks that share
  /// the sequences among them; its actions in order. All ranks of a replica alike. The caller does
  /// them all, then finish().
  const std::vector<PipelineAction>& begin_training(std::int64_t micro_batches, std::int64_t rows);
  /// The same without a way back, in which micro-batches have rows of their own.
  const std::vector<PipelineAction>& begin_forward(
      std::int64_t micro_batches, std::function<std::int64_t(std::int64_t micro_batch)> rows);

  /// Waits for what an action works on, where another stage makes it.
  void await(const PipelineAction& action);
  /// After the last run: loss f64 [2] += that of the micro-batch, as LanguageModel::loss() has it.
  void forward(const PipelineAction& action, const MicroBatch& batch, const ForwardContext& context,
               float grad_scale, Tensor& loss);
  /// What the pass leaves behind.
  std::unique_ptr<Pass> backward(const PipelineAction& action);
  /// The gradients of weights that a pass backward has left, where the schedule has them apart.
  void weights(const PipelineAction& action);
  /// An action whose micro-batch no later one of this stage takes forward.
  bool last_of_stage(const PipelineAction& action) const {
    return action.run + 1 == shape_.interleave;
  }
  /// No pass forward is left: when gradients have no use pending they are final.
  bool all_forward() const { return forward_left_ == 0; }
  const LanguageModel& model() const { return model_; }
  /// A micro-batch goes forward and back before the next one, and its passes leave nothing behind:
  /// what they take of memory is free for the next.
  bool one_by_one() const { return !exchange_ && !gatherer_ && !shape_.zero_bubble; }
  /// Then: takes back what the passes of one have done on the host, after an exception.
  void drop_passes();
  bool several_stages() const { return exchange_ != nullptr; }
  /// Makes progress with messages; cheap.
  void poll() {
    if (exchange_) exchange_->poll();
    if (sharers_ != nullptr) sharers_->communicator.poll();
    if (gatherer_) gatherer_->poll();
  }
  /// What the first and the last stage both have is summed, and all messages have been taken. Where
  /// the store gathers its units, its gradients are the sums over the replicas, and there is
  /// nothing left to reduce.
  void finish();

  /// Where the store gathers its units; else nothing is done. Before weights are changed other than
  /// by the model,
  void forget_weights() {
    if (gatherer_) gatherer_->forget();
  }
  /// and after the step that changed them: the next one finds its first weights on their way.
  void gather_ahead() {
    if (gatherer_) gatherer_->gather_ahead();
  }
  /// Null where weights are not gathered.
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
  const ContextGroup* sharers_;  // of the tokens of each sequence; null = none
  const StageFacts facts_;
  std::unique_ptr<StageExchange> exchange_;  // null with one stage
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
