// The interface that a family's file implements: a block, and how it is created.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/config/schema.h"
#include "trainer/autograd/moe_functions.h"
#include "trainer/models/hf_format.h"
#include "trainer/models/shape.h"
#include "trainer/nn/parameter_store.h"
#include "trainer/parallel/context_group.h"

namespace sortie::trainer {

/// The hidden state between layers and between pipeline stages: the sum of `residual` and `branch`.
/// The norm that reads it does the addition. `branch` may be empty.
struct Hidden {
  Var residual, branch;
};

/// Facts about the micro-batch of a forward pass, and outputs besides the hidden state.
struct ForwardContext {
  /// The ranks that share the tokens of each sequence; null = this rank has all tokens.
  const ContextGroup* group = nullptr;
  std::int64_t batch = 0, tokens = 0;  // sequences, and tokens of each sequence on this rank
  /// i32 [B, T]: position of each token for RoPE and learned positions; undefined = 0, 1, 2 ...
  Tensor positions = {};
  /// i32 [B, T]: where each token's document starts in its sequence; undefined = one document per
  /// sequence.
  Tensor document_start = {};
  /// The same for all tokens of the sequences, including those of other ranks.
  Tensor whole_document_start = {};
  /// i32 [B, T]: the targets of all tokens of packed sequences. ops::kDocumentEnds marks the end of
  /// a document; positions restart after it. Undefined = the sequences are not packed.
  Tensor packed_targets = {};
  /// Dropout is active in training only. `seed` and `first_sample` decide what it drops;
  /// `first_sample` i64 [1] is the number of the batch's first sample in the run, undefined = 0.
  bool training = false;
  std::uint64_t seed = 0;
  Tensor first_sample = {};
  /// Another factor of the gradients of the losses per token: f32 [1], undefined = 1.
  Tensor grad_scale = {};
  /// Inputs and outputs of the routers of experts.
  RouterPass routers = {};
  Tensor mtp_loss = {};  // output, f64 [2]: coefficient * loss, summed like the main loss; a count

  std::int64_t whole_tokens() const { return group == nullptr ? tokens : tokens * group->size(); }
  /// Returns the dropout at a place in the model; off outside of training.
  ops::Dropout dropout(double probability, std::string_view place) const;
};

class Block {
 public:
  virtual ~Block() = default;
  virtual Hidden forward(Graph& graph, const Hidden& in, ForwardContext& context) const = 0;
};

/// Arguments of a block's constructor. The objects they refer to must outlive the block.
struct BlockArguments {
  const config::ModelConfig& config;
  const ModelShape& shape;
  std::int64_t layer;
  ParameterStore& store;
  const ops::RopeTable& rope;
};

/// Creates the block of a layer, with parameters named "layers.N. ...".
template <class B>
std::unique_ptr<Block> make_block(const BlockArguments& arguments) {
  return std::make_unique<B>(arguments, "layers." + std::to_string(arguments.layer));
}

/// One architecture, defined in its own file and listed in families.cc. Its row in
/// common/config/architectures.cc says what the keys of [model] mean for it.
struct Family {
  std::string_view name;  // in [model] architecture
  ops::NormKind final_norm;
  std::unique_ptr<Block> (*make_block)(const BlockArguments& arguments);
  HfFormat hf;
  /// The score of its routers; with sigmoid a bias corrects the selection.
  ops::RouterScore router = ops::RouterScore::softmax;
};

}  // namespace sortie::trainer
