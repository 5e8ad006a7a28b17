// A decoder-only language model over (layer range): what a pipeline stage, or a whole model,
// computes.
#pragma once

#include <memory>
#include <vector>

#include "trainer/models/block.h"
#include "trainer/models/families.h"
#include "trainer/models/mtp.h"

namespace sortie::trainer {

class LanguageModel {
 public:
  /// Declares all parameters in `store`; call store.finalize() and initialize() or load before use.
  LanguageModel(ExecutionContext& context, const config::ModelConfig& config, ParameterStore& store,
                bool recompute_layers);

  const ModelShape& shape() const { return shape_; }

  /// loss f64 [2] += (loss summed over targets >= 0 of one micro-batch, their number); tokens,
  /// targets [B, T] i32. Where the graph records, backward() then gives the gradients of grad_scale
  /// * (sum + context.mtp_loss), and of the routers' losses times their scale; `context` must live
  /// until then. Multi-token prediction and the sequences' balance take part in training only.
  void loss(Graph& graph, const Tensor& tokens, const Tensor& targets, float grad_scale,
            ForwardContext& context, Tensor& loss) const;
  /// The same from zero; ops::read_cross_entropy() brings it to the host.
  Tensor loss(Graph& graph, const Tensor& tokens, const Tensor& targets, float grad_scale,
              ForwardContext& context) const;

  /// Logits [B * T, vocab_size] f32, of the model as it predicts.
  Tensor logits(Graph& graph, const Tensor& tokens, ForwardContext context = {}) const;
  /// Logits [B, vocab_size] f32 of the last position.
  Tensor last_logits(Graph& graph, const Tensor& tokens, ForwardContext context = {}) const;

 private:
  void find_documents(ExecutionContext& execution, const Tensor& tokens,
                      ForwardContext& context) const;
  Hidden embed(Graph& graph, const Tensor& tokens, ForwardContext& context) const;
  Var final_hidden(Graph& graph, const Tensor& tokens, ForwardContext& context) const;

  ModelShape shape_;
  const TensorGroup* group_;
  bool recompute_layers_;
  double embedding_dropout_;
  std::int64_t document_end_;  // token, -1 = none
  bool reset_positions_;
  ops::RopeTable rope_;
  Parameter* embedding_ = nullptr;
  Parameter* positions_ = nullptr;  // null without learned positions
  Parameter* head_ = nullptr;       // the embedding itself when tied
  std::vector<std::unique_ptr<Block>> blocks_;
  NormParameters final_norm_{};
  double load_coefficient_;
  std::unique_ptr<MultiTokenPrediction> mtp_;
};

}  // namespace sortie::trainer
