// The feed-forward part of a block, as [model.moe] says: a plain MLP, or a mixture of experts
// (router, experts and optionally the shared expert, which processes every token).
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
  bool bias = false;            // the selection has a correction bias, of Use::state
  RouterLosses losses;
  double capacity_factor = 0.0;  // in training; 0 = experts accept every choice
  double std_dev = 0.0, out_std = 0.0;
};
/// Returns how many choices of a sequence of `tokens` tokens an expert accepts: ceil(factor *
/// tokens * top_k / experts), 0 = all.
std::int64_t expert_capacity(const MixtureSpec& spec, std::int64_t tokens);
MixtureSpec mixture_spec(const config::ModelConfig& config, const ModelShape& shape);

class MixtureModule {
 public:
  /// Declares "<name>.router.weight", "<name>.experts.E.{gate_up,down}.weight" and, as `spec` says,
  /// "<name>.router.bias" and "<name>.shared.{gate_up,down}.weight". `index`: the number of this
  /// mixture in the model.
  MixtureModule(ParameterStore& store, const std::string& name, const MixtureSpec& spec,
                std::int64_t index);

  /// Applies the mixture to x [B * T, C], the tokens of the context's sequences.
  Var operator()(Graph& graph, const Var& x, ForwardContext& context) const;

 private:
  MixtureSpec spec_;
  std::int64_t index_;
  Var mix_apart(Graph& graph, const Var& rows, const Routed& routed) const;
  /// Whether any weight of the experts, of all ranks, or of the shared expert is trained.
  bool trains() const;
  const TensorGroup* group_;
  const ExpertGroup* expert_group_;
  Parameter* router_;
  Parameter* bias_ = nullptr;
  std::vector<Parameter*> gate_up_, down_;  // of all experts
  SwigluModule shared_;
};

/// The feed-forward part of one layer, with parameters named "<name>. ...".
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

/// Adds the usual names of a mixture in a Hugging Face folder, not those of a plain MLP.
void add_hf_mixture(std::vector<HfModule>& modules);

/// Returns the biases of all mixtures, in the order of the mixtures; empty if they have none.
std::vector<Parameter*> router_biases(ParameterStore& store);

/// Sums the outputs of the routers and of multi-token prediction over the micro-batches of a step.
class StepRouting {
 public:
  /// Allocates the sums for all `mixtures` of the whole model, of which this rank may have only
  /// some or none: any() is then true on all ranks. Without this call the first add() allocates
  /// them, for the mixtures that it is given.
  void expect(ExecutionContext& context, std::int64_t mixtures, std::int64_t experts);
  void add(ExecutionContext& context, const ForwardContext& forward);
  /// False for models without mixtures and multi-token prediction.
  bool any() const { return sums_.defined(); }
  /// The sums as one row f64, to be summed over ranks in place: the routers' balance losses; the
  /// loss of multi-token prediction, summed over tokens; the number of dropped choices; then, from
  /// kCounts on, how often each expert was chosen, mixture by mixture.
  Tensor& sums() { return sums_; }
  static constexpr std::int64_t kCounts = 3;
  /// The number of choices of this rank's rows, including dropped ones.
  double choices() const { return choices_; }
  /// Adds to choices() for a pass that ran as a captured graph, where add() was not called.
  void count_choices(double choices) { choices_ += choices; }

  /// Moves the biases of the routers by `rate` towards an even load if the step's gate is open.
  void balance(ParameterStore& store, const Tensor& gate, double rate) const;
  void clear(ExecutionContext& context);

 private:
  Tensor sums_;
  std::vector<std::int64_t> sizes_;  // experts of each mixture
  std::vector<bool> seen_;           // by mixture: this rank has it
  double choices_ = 0.0;
};

}  // namespace sortie::trainer
