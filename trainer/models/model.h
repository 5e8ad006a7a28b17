// A decoder-only language model over (layer range): what a pipeline stage, or a whole model,
// computes.
#pragma once

#include <memory>
#include <vector>

#include "common/config/schema.h"
#include "trainer/autograd/functions.h"

namespace sortie::trainer {

/// [model] with every derived size filled in.
struct ModelShape {
  std::int64_t vocab_size;         // tokens that exist
  std::int64_t padded_vocab_size;  // rows of the embedding and the head: a multiple of 64
  std::int64_t hidden, layers, heads, kv_heads, head_dim, ffn, sequence_length, rotary_dims;
  bool tied;
};
ModelShape resolve_shape(const config::ModelConfig& config);

/// What passes between layers, and later between pipeline stages: the sum of `residual` and
/// `branch` is the hidden state; the addition is left to the norm that reads it. branch may be
/// empty.
struct Hidden {
  Var residual, branch;
};

class Block {
 public:
  virtual ~Block() = default;
  virtual Hidden forward(Graph& graph, const Hidden& in, const AttentionShape& shape) const = 0;
};

/// Weights of one family: how its blocks are built. models/llama.cc, models/gpt_neox.cc.
std::unique_ptr<Block> make_llama_block(const config::ModelConfig& config, std::int64_t layer,
                                        ParameterStore& store, const ops::RopeTable& rope);
std::unique_ptr<Block> make_gpt_neox_block(const config::ModelConfig& config, std::int64_t layer,
                                           ParameterStore& store, const ops::RopeTable& rope);

/// Floating-point operations of one trained token: 6 per weight that is multiplied (forward and
/// backward), plus 6 L H D T for attention (causal half of 12 L H D T). Recomputation is not
/// counted.
double flops_per_token(const ModelShape& shape, std::int64_t matrix_parameters);

class LanguageModel {
 public:
  /// Declares all parameters in `store`; call store.finalize() and initialize() or load before use.
  LanguageModel(ExecutionContext& context, const config::ModelConfig& config, ParameterStore& store,
                bool recompute_layers);

  const ModelShape& shape() const { return shape_; }
  /// Weights that a token is multiplied with: the embedding look-up is none, the head is.
  std::int64_t matrix_parameters() const;

  /// Loss summed over targets >= 0 of one micro-batch: tokens, targets [B, T] i32. Where the graph
  /// records, backward() then gives the gradients of grad_scale * sum.
  ops::CrossEntropyResult loss(Graph& graph, const Tensor& tokens, const Tensor& targets,
                               float grad_scale) const;

  /// Logits [B, vocab_size] f32 of the last position.
  Tensor last_logits(Graph& graph, const Tensor& tokens) const;

 private:
  Var final_hidden(Graph& graph, const Tensor& tokens) const;

  ModelShape shape_;
  bool recompute_layers_;
  ParameterStore& store_;
  ops::RopeTable rope_;
  Parameter* embedding_ = nullptr;
  Parameter* head_ = nullptr;  // the embedding itself when tied
  std::vector<std::unique_ptr<Block>> blocks_;
  NormParameters final_norm_{};
};

}  // namespace sortie::trainer
