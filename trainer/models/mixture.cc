#include "trainer/models/mixture.h"

#include <algorithm>
#include <cmath>

#include "common/config/architectures.h"
#include "trainer/autograd/expert_parallel.h"
#include "trainer/models/families.h"
#include "trainer/ops/copy.h"

namespace sortie::trainer {
namespace {

constexpr std::string_view kBiasName = ".router.bias";

}  // namespace

MixtureSpec mixture_spec(const config::ModelConfig& config, const ModelShape& shape) {
  const config::MoeConfig& moe = config.moe;
  const ops::RouterScore score = family_of(config.architecture).router;
  MixtureSpec spec;
  spec.router = {.score = score,
                 .experts = moe.num_experts,
                 .top_k = moe.topk,
                 .groups = moe.num_groups,
                 .kept_groups = moe.group_topk,
                 .normalize = moe.normalize_topk,
                 .scale = static_cast<float>(moe.scaling_factor)};
  spec.hidden = shape.hidden;
  spec.ffn = expert_ffn(config, shape);
  spec.shared_ffn = moe.num_shared_experts * spec.ffn;
  spec.bias = score == ops::RouterScore::sigmoid;
  spec.losses = {.sequence = moe.seq_aux_loss_coeff, .load = moe.aux_loss_coeff};
  spec.capacity_factor = moe.capacity_factor;
  spec.std_dev = config.init_std;
  spec.out_std = residual_std(config.init_std, shape.layers);
  return spec;
}

std::int64_t expert_capacity(const MixtureSpec& spec, std::int64_t tokens) {
  const auto choices = static_cast<double>(tokens * spec.router.top_k);
  return static_cast<std::int64_t>(
      std::ceil(spec.capacity_factor * choices / static_cast<double>(spec.router.experts)));
}

MixtureModule::MixtureModule(ParameterStore& store, const std::string& name,
                             const MixtureSpec& spec, std::int64_t index)
    : spec_(spec),
      index_(index),
      group_(store.tensor_group()),
      expert_group_(store.expert_group()) {
  const std::int64_t count = spec_.router.experts;
  router_ = &store.add({name + ".router.weight",
                        {count, spec_.hidden},
                        Init::normal(spec_.std_dev),
                        Use::f32_matrix,
                        true,
                        {},
                        {.partial_gradient = true}});
  if (spec_.bias)
    bias_ = &store.add(
        {name + std::string(kBiasName), {count}, Init::zeros(), Use::state, /*decay=*/false, {}});
  for (std::int64_t e = 0; e < count; ++e) {
    const std::string expert = name + ".experts." + std::to_string(e);
    gate_up_.push_back(
        &store.add({expert + ".gate_up.weight",
                    {2 * spec_.ffn, spec_.hidden},
                    Init::normal(spec_.std_dev),
                    Use::matrix,
                    true,
                    {{"gate", spec_.ffn}, {"up", spec_.ffn}},
                    {.axis = 0, .group = ReduceGroup::expert, .expert = {e, count}}}));
    down_.push_back(&store.add({expert + ".down.weight",
                                {spec_.hidden, spec_.ffn},
                                Init::normal(spec_.out_std),
                                Use::matrix,
                                true,
                                {},
                                {.axis = 1, .group = ReduceGroup::expert, .expert = {e, count}}}));
  }
  const double share = static_cast<double>(spec_.router.top_k) / static_cast<double>(count);
  for (const std::vector<Parameter*>* experts : {&gate_up_, &down_})
    for (Parameter* expert : *experts) expert->set_token_share(share);
  if (spec_.shared_ffn > 0)
    shared_ = add_swiglu(store, name + ".shared", spec_.hidden, spec_.shared_ffn, spec_.std_dev,
                         spec_.out_std);
}

Var MixtureModule::operator()(Graph& graph, const Var& x, ForwardContext& context) const {
  // Every rank routes all rows identically; gathering logits is cheap, because their rows are
  // small.
  const Var logits = gather_rows(graph, f32_linear(graph, x, *router_), group_);
  RouterLosses losses = spec_.losses;
  if (!context.training) losses.sequence = 0.0;
  const std::int64_t capacity =
      context.training ? expert_capacity(spec_, context.whole_tokens()) : 0;
  Routed routed = route(graph, logits, spec_.router, bias_ ? bias_->weight() : Tensor(), losses,
                        context.batch, capacity, index_, context.routers);
  // A rank has a part of each expert's width, so its gradient of the weights is a partial sum.
  routed.weights = sum_gradient(graph, routed.weights, group_);
  const Var rows = enter(graph, x, group_);
  if (expert_group_ != nullptr) return leave(graph, mix_apart(graph, rows, routed), group_);
  const Var mixed = experts(graph, rows, routed, gate_up_, down_,
                            /*beside_exchanges=*/group_ != nullptr);
  return leave(graph,
               spec_.shared_ffn > 0 ? add(graph, mixed, shared_.product(graph, rows)) : mixed,
               group_);
}

bool MixtureModule::trains() const {
  const auto trained = [](const Parameter* weight) {
    if (weight == nullptr || weight->trained()) return weight != nullptr;
    const auto& low = weight->low_rank();
    return low && (low->down->trained() || low->up->trained());
  };
  return std::ranges::any_of(gate_up_, trained) || std::ranges::any_of(down_, trained) ||
         trained(shared_.gate_up.weight) || trained(shared_.down.weight);
}

/// Returns a partial sum over the tensor-parallel group: this rank's rows through the experts, plus
/// its part of the shared expert's width for all rows.
Var MixtureModule::mix_apart(Graph& graph, const Var& rows, const Routed& routed) const {
  const ExpertGroup& group = *expert_group_;
  // All ranks of the group record the same steps, whichever experts are trained: a backward pass
  // has exchanges of all of them.
  if (trains()) graph.set_flows(true);
  const auto [first, count] = group.own_rows(rows.data.size(0));
  const Routed own{slice_rows(graph, routed.weights, first, count),
                   routed.experts.slice(0, first, count), routed.most};
  const auto own_experts = gate_up_.size() / static_cast<std::size_t>(group.size());
  const auto part = [&](const std::vector<Parameter*>& all) {
    return std::span(all).subspan(own_experts * static_cast<std::size_t>(group.rank()),
                                  own_experts);
  };
  Var shared;
  const auto meanwhile = [&] {
    if (spec_.shared_ffn > 0) shared = shared_.product(graph, rows);
  };
  const Var mixed = place_rows(graph,
                               experts(graph, slice_rows(graph, rows, first, count), own,
                                       part(gate_up_), part(down_), group, meanwhile),
                               first, rows.data.size(0));
  return shared ? add(graph, mixed, shared) : mixed;
}

FeedForward::FeedForward(const BlockArguments& arguments, const std::string& name) {
  const auto& [config, shape, layer, store, rope] = arguments;
  if (!config::is_mixture(config, layer)) {
    plain_ = add_swiglu(store, name, shape.hidden, shape.ffn, config.init_std,
                        residual_std(config.init_std, shape.layers));
    return;
  }
  std::int64_t index = 0;
  for (std::int64_t earlier = 0; earlier < layer; ++earlier)
    index += config::is_mixture(config, earlier) ? 1 : 0;
  mixture_.emplace(store, name, mixture_spec(config, shape), index);
}

void add_hf_mixture(std::vector<HfModule>& modules) {
  const std::string_view gate_up = "layers.{}.mlp.experts.{e}.gate_up";
  const std::string_view shared = "layers.{}.mlp.shared.gate_up";
  const HfModule all[] = {
      {.hf = "model.layers.{}.mlp.gate",
       .ours = "layers.{}.mlp.router",
       .hf_bias = "model.layers.{}.mlp.gate.e_score_correction_bias"},
      {"model.layers.{}.mlp.experts.{e}.gate_proj", gate_up, "gate"},
      {"model.layers.{}.mlp.experts.{e}.up_proj", gate_up, "up"},
      {"model.layers.{}.mlp.experts.{e}.down_proj", "layers.{}.mlp.experts.{e}.down"},
      {"model.layers.{}.mlp.shared_experts.gate_proj", shared, "gate"},
      {"model.layers.{}.mlp.shared_experts.up_proj", shared, "up"},
      {"model.layers.{}.mlp.shared_experts.down_proj", "layers.{}.mlp.shared.down"}};
  modules.insert(modules.end(), std::begin(all), std::end(all));
}

std::vector<Parameter*> router_biases(ParameterStore& store) {
  std::vector<Parameter*> biases;
  for (const auto& parameter : store.parameters())
    if (parameter->spec().use == Use::state && parameter->name().ends_with(kBiasName))
      biases.push_back(parameter.get());
  return biases;
}

void StepRouting::expect(ExecutionContext& context, std::int64_t mixtures, std::int64_t experts) {
  if (sums_.defined()) return;
  sizes_.assign(static_cast<std::size_t>(mixtures), experts);
  seen_.assign(sizes_.size(), false);
  sums_ = context.zeros(DType::f64, {kCounts + mixtures * experts});
}

void StepRouting::add(ExecutionContext& context, const ForwardContext& forward) {
  const RouterPass& pass = forward.routers;
  if (pass.counts.empty() && !forward.mtp_loss.defined()) return;
  if (!sums_.defined()) {
    std::int64_t all = kCounts;
    for (const Tensor& counts : pass.counts) {
      sizes_.push_back(counts.elements());
      all += counts.elements();
    }
    sums_ = context.zeros(DType::f64, {all});
  }
  const auto add_at = [&](std::int64_t place, const Tensor& values) {
    Tensor sum = sums_.slice(0, place, values.elements());
    ops::accumulate(context, values, sum);
  };
  if (pass.sequence_loss.defined() || pass.load_loss.defined()) {
    Tensor balance = pass.sequence_loss.defined() ? pass.sequence_loss : pass.load_loss;
    if (pass.sequence_loss.defined() && pass.load_loss.defined())
      ops::accumulate(context, pass.load_loss, balance);
    add_at(0, balance);
  }
  if (forward.mtp_loss.defined()) add_at(1, forward.mtp_loss.slice(0, 0, 1));
  if (pass.dropped.defined()) add_at(2, pass.dropped);
  seen_.resize(sizes_.size());
  std::int64_t place = kCounts;
  for (std::size_t i = 0; i < pass.counts.size(); ++i) {
    if (pass.counts[i].defined()) {  // otherwise on another stage, or in another run of this one
      add_at(place, pass.counts[i]);
      choices_ += static_cast<double>(pass.choices[i].elements());
      seen_[i] = true;
    }
    place += sizes_[i];
  }
}

void StepRouting::balance(ParameterStore& store, const Tensor& gate, double rate) const {
  const std::vector<Parameter*> biases = router_biases(store);
  const auto own = static_cast<std::size_t>(std::ranges::count(seen_, true));
  SORTIE_CHECK(biases.size() == own, "{} biases of {} mixtures", biases.size(), own);
  auto next = biases.begin();
  std::int64_t place = kCounts;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    if (seen_[i]) {
      Parameter& parameter = **next++;
      Tensor bias = parameter.weight();
      if (!parameter.frozen())
        ops::update_router_bias(store.context(), gate, sums_.slice(0, place, sizes_[i]),
                                static_cast<float>(rate), bias);
    }
    place += sizes_[i];
  }
}

void StepRouting::clear(ExecutionContext& context) {
  if (sums_.defined()) ops::fill(context, 0.0, sums_);
  choices_ = 0.0;
}

}  // namespace sortie::trainer
