// What a family's file implements: a block, and how it is made.
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

/// What passes between layers, and between pipeline stages: the sum of `residual` and `branch` is
/// the hidden state; the addition is left to the norm that reads it. branch may be empty.
struct Hidden {
  Var residual, branch;
};

/// What a forward pass knows about its micro-batch besides the hidden state.
struct ForwardContext {
  /// The ranks that share the tokens of each sequence; null = this one has them all.
  const ContextGroup* group = nullptr;
  std::int64_t batch = 0, tokens = 0;  // of sequences, and of each of them on this rank
  /// i32 [B, T]: place of each token for RoPE and learned positions; undefined = 0, 1, 2 ...
  Tensor positions = {};
  /// i32 [B, T]: where each token's document starts in its sequence; undefined = one document per
  /// sequence.
  Tensor document_start = {};
  /// The same of all tokens of the sequences, those of other ranks among them.
  Tensor whole_document_start = {};
  /// i32 [B, T]: the targets of all tokens of packed sequences, in which ops::kDocumentEnds ends
  /// documents whose positions are their own; undefined = the sequences are not packed.
  Tensor packed_targets = {};
  /// Decides what dropout drops, together with the number of the first sample of the batch in the
  /// run: i64 [1], undefined = 0.
  bool training = false;
  std::uint64_t seed = 0;
  Tensor first_sample = {};
  /// Gradients of the losses per token are times this too: f32 [1], undefined = 1.
  Tensor grad_scale = {};
  /// What routers of experts are told, and what they and multi-token prediction leave behind.
  RouterPass routers = {};
  Tensor mtp_loss = {};  // f64 [2]: coefficient * loss, summed as the main loss is, and a count

  std::int64_t whole_tokens() const { return group == nullptr ? tokens : tokens * group->size(); }
  /// The dropout of a place in the model; none outside of training.
  ops::Dropout dropout(double probability, std::string_view place) const;
};

class Block {
 public:
  virtual ~Block() = default;
  virtual Hidden forward(Graph& graph, const Hidden& in, ForwardContext& context) const = 0;
};

/// What a block is made from. All references outlive it.
struct BlockArguments {
  const config::ModelConfig& config;
  const ModelShape& shape;
  std::int64_t layer;
  ParameterStore& store;
  const ops::RopeTable& rope;
};

/// The block of a layer, with parameters named "layers.N. ...".
template <class B>
std::unique_ptr<Block> make_block(const BlockArguments& arguments) {
  return std::make_unique<B>(arguments, "layers." + std::to_string(arguments.layer));
}

/// One architecture, defined by its file and listed in families.cc. What the keys of [model] mean
/// for it is its row in common/config/architectures.cc.
struct Family {
  std::string_view name;  // in [model] architecture
  ops::NormKind final_norm;
  std::unique_ptr<Block> (*make_block)(const BlockArguments& arguments);
  HfFormat hf;
  /// Of its mixtures; sigmoid comes with a bias that corrects the selection.
  ops::RouterScore router = ops::RouterScore::softmax;
};

}  // namespace sortie::trainer
