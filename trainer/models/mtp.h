// Multi-token prediction (DeepSeek-AI 2024): a chain of extra layers, the k-th of which predicts
// the token after the next k, in training only.
//   h_k = RMSNorm(block([RMSNorm(embedding(t_{i+k})) | RMSNorm(h_{k-1,i})] . W^T))
// h_0 is the model's final, normed hidden state; embedding and head are the model's own.
#pragma once

#include <memory>
#include <vector>

#include "trainer/models/families.h"
#include "trainer/nn/modules.h"

namespace sortie::trainer {

class MultiTokenPrediction {
 public:
  /// Declares "layers.L+k.{token_norm,hidden_norm,join,final_norm}" and a block of layer L + k for
  /// each of config.mtp.num_layers depths.
  MultiTokenPrediction(const config::ModelConfig& config, const ModelShape& shape,
                       ParameterStore& store, const ops::RopeTable& rope);

  /// Adds to context.mtp_loss f64 [2] the loss, summed over depths and rows with a target, times
  /// loss_coeff / depths, and the number of these rows. Gradients are those of grad_scale times
  /// that loss. Like the main loss, it is a mean over all tokens once it is divided by their
  /// number. The row of token i takes part at depth k if i + k is a token of the same sequence and
  /// document. `hidden` is h_0 of tokens and targets [B, T].
  void loss(Graph& graph, const Var& hidden, const Tensor& tokens, const Tensor& targets,
            Parameter& embedding, Parameter& head, float grad_scale, bool recompute_layers,
            ForwardContext& context) const;

 private:
  struct Depth {
    NormParameters token_norm, hidden_norm, final_norm;
    LinearModule join;
    std::unique_ptr<Block> block;
  };
  double coefficient_;
  std::int64_t vocab_size_;
  const TensorGroup* group_;
  std::vector<Depth> depths_;
};

}  // namespace sortie::trainer
