// A decoder-only language model: the whole model, or the runs of layers of one pipeline stage.
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
  /// Declares the parameters of the part in `store`. Before use call store.finalize(), and
  /// initialize() or load the weights.
  LanguageModel(ExecutionContext& context, const config::ModelConfig& config, ParameterStore& store,
                bool recompute_layers, const ModelPart& part);
  /// For the whole model.
  LanguageModel(ExecutionContext& context, const config::ModelConfig& config, ParameterStore& store,
                bool recompute_layers)
      : LanguageModel(context, config, store, recompute_layers, whole_model(config)) {}

  const ModelShape& shape() const { return shape_; }
  const ModelPart& part() const { return part_; }
  /// The table in this part that the first and the last stage both have; null if there is none.
  Parameter* shared_table() const { return shared_table_; }

  /// Runs one micro-batch of whole sequences through run `run` of the part. Returns the hidden
  /// state of this rank's tokens after the last layer of the run; only after the model's last run
  /// may it have a branch. `in` is the result of the previous run; it is empty for the model's
  /// first run, which embeds the tokens. `context` belongs to this pass alone and must live until
  /// its backward pass ends.
  Hidden run_layers(Graph& graph, std::size_t run, const Tensor& tokens, const Hidden& in,
                    ForwardContext& context) const;
  /// Call after the model's last run: computes the loss from its result, as loss() does.
  void finish_loss(Graph& graph, Hidden out, const Tensor& tokens, const Tensor& targets,
                   float grad_scale, ForwardContext& context, Tensor& loss) const;

  /// loss f64 [2] += (loss summed over targets >= 0 of one micro-batch, their number); tokens,
  /// targets [B, T] i32. If the graph records, backward() then computes the gradients of grad_scale
  /// * (sum + context.mtp_loss), and of the routers' losses times their scale; `context` must live
  /// until then. Multi-token prediction and the sequence-wise balance loss take part in training
  /// only.
  void loss(Graph& graph, const Tensor& tokens, const Tensor& targets, float grad_scale,
            ForwardContext& context, Tensor& loss) const;
  /// The same, starting from zero; ops::read_cross_entropy() copies the result to the host.
  Tensor loss(Graph& graph, const Tensor& tokens, const Tensor& targets, float grad_scale,
              ForwardContext& context) const;

  // For a whole model without tensor parallelism only:
  /// Returns the logits [B * T, vocab_size] f32.
  Tensor logits(Graph& graph, const Tensor& tokens, ForwardContext context = {}) const;
  /// Returns the logits [B, vocab_size] f32 of the last position.
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
  Parameter* embedding_ = nullptr;  // on a later last stage: a copy, as tied head or for mtp_
  Parameter* positions_ = nullptr;  // null without learned positions
  Parameter* head_ = nullptr;       // the embedding itself when tied
  Parameter* shared_table_ = nullptr;
  std::vector<std::unique_ptr<Block>> blocks_;  // by layer; null if the layer is on another stage
  NormParameters final_norm_{};
  double load_coefficient_;
  std::unique_ptr<MultiTokenPrediction> mtp_;
};

}  // namespace sortie::trainer
