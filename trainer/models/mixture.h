// The feed-forward part of a block: a plain MLP, or a mixture of experts (router, experts and,
// where there is one, the shared expert that every token passes) as [model.moe] says.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trainer/autograd/moe_functions.h"
#include "trainer/models/block.h"
#include "trainer/nn/modules.h"

namespace sortie::trainer {

struct MixtureSpec {
  ops::RouterSpec router;
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;         // inner width of an expert
  std::int64_t shared_ffn = 0;  // of the shared expert; 0 = none
  bool bias = false;            // a correction bias of the selection, kept as state
  RouterLosses losses;
  double capacity_factor = 0.0;  // in training; 0 = experts take every choice
  double std_dev = 0.0, out_std = 0.0;
};
/// How many choices of a sequence of so many tokens an expert takes: ceil(factor * tokens * top_k /
/// experts), 0 = all.
std::int64_t expert_capacity(const MixtureSpec& spec, std::int64_t tokens);
MixtureSpec mixture_spec(const config::ModelConfig& config, const ModelShape& shape);

class MixtureModule {
 public:
  /// Declares "<name>.router.weight", "<name>.router.bias",
  /// "<name>.experts.E.{gate_up,down}.weight" and "<name>.shared.{gate_up,down}.weight". `index`:
  /// which mixture of the model it is.
  MixtureModule(ParameterStore& store, const std::string& name, const MixtureSpec& spec,
                std::int64_t index);

  /// x [B * T, C] of the context's sequences.
  Var operator()(Graph& graph, const Var& x, ForwardContext& context) const;

 private:
  MixtureSpec spec_;
  std::int64_t index_;
  Var mix_apart(Graph& graph, const Var& rows, const Routed& routed) const;
  const TensorGroup* group_;
  const ExpertGroup* expert_group_;
  Parameter* router_;
  Parameter* bias_ = nullptr;
  std::vector<Parameter*> gate_up_, down_;  // of all experts
  SwigluModule shared_;
};

/// What a layer of the model has, under the name "<name>".
class FeedForward {
 public:
  FeedForward(const BlockArguments& arguments, const std::string& name);
  Var operator()(Graph& graph, const Var& x, ForwardContext& context) const {
    return mixture_ ? (*mixture_)(graph, x, context) : plain_(graph, x);
  }

 private:
  SwigluModule plain_;
  std::optional<MixtureModule> mixture_;
};

/// The usual names of a mixture in a Hugging Face folder, beside those of a plain MLP.
void add_hf_mixture(std::vector<HfModule>& modules);

/// The biases of all mixtures, in the order of the mixtures; empty where they have none.
std::vector<Parameter*> router_biases(ParameterStore& store);

/// What the routers and multi-token prediction left behind in one step, over its micro-batches.
class StepRouting {
 public:
  /// Makes room for `mixtures` of a whole model, of which this rank may have a part: any() then
  /// holds on all its ranks alike. Without it the first add() does, for what it is given.
  void expect(ExecutionContext& context, std::int64_t mixtures, std::int64_t experts);
  void add(ExecutionContext& context, const ForwardContext& forward);
  /// False for models without mixtures and multi-token prediction.
  bool any() const { return sums_.defined(); }
  /// Everything as one row f64, to be summed over ranks in place: the routers' balance losses,
  /// summed over micro-batches; the loss of multi-token prediction, summed over tokens; how many
  /// choices were dropped; then, from kCounts on, how often each expert was chosen, mixture by
  /// mixture.
  Tensor& sums() { return sums_; }
  static constexpr std::int64_t kCounts = 3;
  /// Of the rows of this rank, dropped ones among them.
  double choices() const { return choices_; }
  /// What an add() has counted that was done by the device alone.
  void count_choices(double choices) { choices_ += choices; }

  /// Moves the biases of the routers by `rate` towards an even load, where the step's gate is open.
  void balance(ParameterStore& store, const Tensor& gate, double rate) const;
  void clear(ExecutionContext& context);

 private:
  Tensor sums_;
  std::vector<std::int64_t> sizes_;  // experts of each mixture
  std::vector<bool> seen_;           // by mixture: this rank has it
  double choices_ = 0.0;
};

}  // namespace sortie::trainer
