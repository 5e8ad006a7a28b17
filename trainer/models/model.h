// A decoder-only language model over (layer range): what a pipeline stage, or a whole model,
// computes.
#pragma once

#include <memory>
#include <vector>

#include "trainer/models/block.h"
#include "trainer/models/families.h"
#include "trainer/models/mtp.h"
#include "trainer/models/part.h"

namespace sortie::trainer {

class LanguageModel {
 public:
  /// Declares the parameters of the part in `store`; call store.finalize() and initialize() or load
  /// before use.
  LanguageModel(ExecutionContext& context, const config::ModelConfig& config, ParameterStore& store,
                bool recompute_layers, const ModelPart& part);
  /// Of the whole model.
  LanguageModel(ExecutionContext& context, const config::ModelConfig& config, ParameterStore& store,
                bool recompute_layers)
      : LanguageModel(context, config, store, recompute_layers, whole_model(config)) {}

  const ModelShape& shape() const { return shape_; }
  const ModelPart& part() const { return part_; }
  /// What is on the first and on the last stage both, in this part; null = nothing is.
  Parameter* shared_table() const { return shared_table_; }

  /// One micro-batch of whole sequences through run `run` of the part: the hidden state of this
  /// rank's tokens after its last layer, without a branch. `in` is that of the run before, and
  /// empty for the model's first, which takes the embedding of the tokens; `context` is of this
  /// pass alone and lives until its backward pass.
  Hidden run_layers(Graph& graph, std::size_t run, const Tensor& tokens, const Hidden& in,
                    ForwardContext& context) const;
  /// After the model's last run: what loss() does with the result.
  void finish_loss(Graph& graph, Hidden out, const Tensor& tokens, const Tensor& targets,
                   float grad_scale, ForwardContext& context, Tensor& loss) const;

  /// loss f64 [2] += (loss summed over targets >= 0 of one micro-batch, their number); tokens,
  /// targets [B, T] i32. Where the graph records, backward() then gives the gradients of grad_scale
  /// * (sum + context.mtp_loss), and of the routers' losses times their scale; `context` must live
  /// until then. Multi-token prediction and the sequences' balance take part in training only.
  void loss(Graph& graph, const Tensor& tokens, const Tensor& targets, float grad_scale,
            ForwardContext& context, Tensor& loss) const;
  /// The same from zero; ops::read_cross_entropy() brings it to the host.
  Tensor loss(Graph& graph, const Tensor& tokens, const Tensor& targets, float grad_scale,
              ForwardContext& context) const;

  // Of a whole model, as the next ones are.
  /// Logits [B * T, vocab_size] f32, of the model as it predicts.
  Tensor logits(Graph& graph, const Tensor& tokens, ForwardContext context = {}) const;
  /// Logits [B, vocab_size] f32 of the last position.
  Tensor last_logits(Graph& graph, const Tensor& tokens, ForwardContext context = {}) const;

 private:
  void find_places(ExecutionContext& execution, const Tensor& tokens,
                   ForwardContext& context) const;
  Hidden embed(Graph& graph, const Tensor& tokens, ForwardContext& context) const;
  Hidden pass_layers(Graph& graph, const LayerSpan& layers, Hidden hidden,
                     ForwardContext& context) const;
  Var final_hidden(Graph& graph, const Tensor& tokens, ForwardContext& context) const;
  void head_losses(Graph& graph, const Var& hidden, const Tensor& tokens, const Tensor& targets,
                   float grad_scale, ForwardContext& context, Tensor& loss) const;

  ModelShape shape_;
  const TensorGroup* group_;
  ModelPart part_;
  bool recompute_layers_;
  double embedding_dropout_;
  std::int64_t document_end_;  // token, -1 = none
  bool reset_positions_;
  ops::RopeTable rope_;
  Parameter* embedding_ = nullptr;  // of a last stage: for multi-token prediction alone
  Parameter* positions_ = nullptr;  // null without learned positions
  Parameter* head_ = nullptr;       // the embedding itself when tied
  Parameter* shared_table_ = nullptr;
  std::vector<std::unique_ptr<Block>> blocks_;  // by layer; null where another stage has it
  NormParameters final_norm_{};
  double load_coefficient_;
  std::unique_ptr<MultiTokenPrediction> mtp_;
};

}  // namespace sortie::trainer
