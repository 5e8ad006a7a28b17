#include "trainer/models/mtp.h"

#include "trainer/autograd/context_parallel.h"
#include "trainer/ops/tokens.h"

namespace sortie::trainer {
namespace {

/// Returns token i + k for each token i of this rank; `missing` if that is beyond the sequence or
/// in another document.
Tensor shifted(ExecutionContext& execution, const Tensor& tokens, const ForwardContext& context,
               std::int64_t k, std::int32_t missing) {
  Tensor out = execution.empty(DType::i32, tokens.shape());
  ops::shift_tokens(execution, tokens, context.whole_document_start, k, missing, out);
  return own_tokens(execution, out, context.group);
}

}  // namespace

MultiTokenPrediction::MultiTokenPrediction(const config::ModelConfig& config,
                                           const ModelShape& shape, ParameterStore& store,
                                           const ops::RopeTable& rope)
    : coefficient_(config.mtp.num_layers > 0
                       ? config.mtp.loss_coeff / static_cast<double>(config.mtp.num_layers)
                       : 0.0),
      vocab_size_(shape.vocab_size),
      group_(store.tensor_group()) {
  const Family& family = family_of(config.architecture);
  for (std::int64_t k = 0; k < config.mtp.num_layers; ++k) {
    const std::int64_t layer = shape.layers + k;
    const std::string name = "layers." + std::to_string(layer);
    const auto norm = [&](const char* part) {
      return add_norm(store, name + part, family.final_norm, shape.hidden, config.norm_epsilon);
    };
    Depth depth;
    depth.token_norm = norm(".token_norm");
    depth.hidden_norm = norm(".hidden_norm");
    depth.join =
        add_linear(store, name + ".join", shape.hidden, 2 * shape.hidden, config.init_std, false);
    depth.block = family.make_block({config, shape, layer, store, rope});
    depth.final_norm = norm(".final_norm");
    depths_.push_back(std::move(depth));
  }
}

void MultiTokenPrediction::loss(Graph& graph, const Var& hidden, const Tensor& tokens,
                                const Tensor& targets, Parameter& table, Parameter& head,
                                float grad_scale, bool recompute_layers,
                                ForwardContext& context) const {
  Var h = hidden;
  std::int64_t k = 0;
  for (const Depth& depth : depths_) {
    ++k;
    const Tensor ahead = shifted(graph.context(), tokens, context, k, 0);
    const Tensor labels = shifted(graph.context(), targets, context, k, ops::kNoTarget);
    const auto segment = [this, &depth, &table, ahead, &context](
                             Graph& inner, const std::vector<Var>& in) -> std::vector<Var> {
      const Var token = embedding(inner, ahead, table, group_);
      const Var joined = concat(inner, residual_norm(inner, token, {}, depth.token_norm).normed,
                                residual_norm(inner, in[0], {}, depth.hidden_norm).normed);
      const Hidden out = depth.block->forward(inner, {depth.join(inner, joined), {}}, context);
      return {residual_norm(inner, out.residual, out.branch, depth.final_norm).normed};
    };
    h = recompute_layers ? recompute(graph, {h}, segment)[0] : segment(graph, {h})[0];
    head_loss(graph, enter(graph, h, group_), head, labels.view({labels.elements()}),
              {.vocab_size = vocab_size_,
               .grad_scale = static_cast<float>(static_cast<double>(grad_scale) * coefficient_),
               .loss_scale = coefficient_,
               .step_scale = context.grad_scale},
              context.mtp_loss, group_);
  }
}

}  // namespace sortie::trainer
