#include "trainer/models/model.h"

#include <cmath>

#include "common/config/architectures.h"
#include "trainer/autograd/context_parallel.h"
#include "trainer/models/rope_scaling.h"
#include "trainer/nn/modules.h"
#include "trainer/ops/tokens.h"
#include "trainer/random/random.h"

namespace sortie::trainer {

ops::Dropout ForwardContext::dropout(double probability, std::string_view place) const {
  if (!training || probability <= 0.0) return {};
  return {.probability = static_cast<float>(probability),
          .key = random_key(seed, place),
          .first = first_sample};
}

LanguageModel::LanguageModel(ExecutionContext& context, const config::ModelConfig& config,
                             ParameterStore& store, bool recompute_layers, const ModelPart& part)
    : shape_(resolve_shape(config)),
      group_(store.tensor_group()),
      part_(part),
      recompute_layers_(recompute_layers),
      embedding_dropout_(config.embedding_dropout),
      document_end_(config.document_end_token),
      reset_positions_(config.reset_positions),
      load_coefficient_(config.moe.aux_loss_coeff) {
  const Family& family = family_of(config.architecture);
  rope_ = ops::make_rope_table(context, shape_.sequence_length,
                               model_rope_frequencies(config, shape_.rotary_dims),
                               rope_table_factor(config));
  rope_.interleaved = config::architecture_of(config).latent;
  const Shape table{shape_.padded_vocab_size, shape_.hidden};
  const auto add_table = [&](const char* name, const char* tied_to, bool is_head) {
    Parameter& rows = store.add({name,
                                 table,
                                 Init::normal(config.init_std),
                                 Use::matrix,
                                 true,
                                 {},
                                 {.axis = 0, .pads = true},
                                 tied_to,
                                 /*fp8=*/false,
                                 /*product_gradient=*/is_head});
    rows.set_padding((shape_.padded_vocab_size - shape_.vocab_size) * shape_.hidden);
    return &rows;
  };
  const bool predicts_more = part_.last && config.mtp.num_layers > 0;
  if (part_.first) {
    embedding_ = add_table("embedding.weight", "", shape_.tied && part_.last);
    if (!part_.last && (shape_.tied || config.mtp.num_layers > 0)) shared_table_ = embedding_;
  } else if (part_.last && (shape_.tied || predicts_more)) {
    // A copy of the first stage's table. Declared first, like the original, because its gradient
    // becomes final last: gradients are reduced in the reverse order of declaration.
    embedding_ = shared_table_ = add_table(shape_.tied ? "head.weight" : "mtp.embedding.weight",
                                           "embedding.weight", shape_.tied);
  }
  if (part_.first && !config::architecture_of(config).rope)  // a table added to the embedding
    positions_ = &store.add({"positions.weight",
                             {shape_.num_positions, shape_.hidden},
                             Init::normal(config.init_std),
                             Use::matrix,
                             true,
                             {},
                             {.partial_gradient = true}});
  blocks_.resize(static_cast<std::size_t>(shape_.layers));
  for (const auto& [begin, end] : part_.runs)
    for (std::int64_t layer = begin; layer < end; ++layer)
      blocks_[static_cast<std::size_t>(layer)] =
          family.make_block({config, shape_, layer, store, rope_});
  if (!part_.last) return;
  final_norm_ =
      add_norm(store, "final_norm", family.final_norm, shape_.hidden, config.norm_epsilon);
  head_ = shape_.tied ? embedding_ : add_table("head.weight", "", true);
  if (predicts_more) mtp_ = std::make_unique<MultiTokenPrediction>(config, shape_, store, rope_);
}

/// Sets the document starts and positions of the tokens. A document ends with a token, or where the
/// targets of a packed sequence say so. A caller that sets the positions itself, as text generation
/// does, has one document. With context parallelism positions are set too, because the tokens of a
/// rank are not consecutive.
void LanguageModel::find_places(ExecutionContext& execution, const Tensor& tokens,
                                ForwardContext& context) const {
  const ContextGroup* group = context.group;
  context.batch = tokens.size(0);
  context.tokens = group == nullptr ? tokens.size(1) : tokens.size(1) / group->size();
  if (group == nullptr && context.document_start.defined())
    context.whole_document_start = context.document_start;
  if (context.document_start.defined() || context.positions.defined()) return;
  Tensor places;
  const bool packed = context.packed_targets.defined();
  if (document_end_ >= 0 || packed) {
    const auto find = [&](std::int64_t end, Tensor& starts) {
      ops::find_documents(execution, tokens, static_cast<std::int32_t>(end), context.packed_targets,
                          starts, places);
    };
    if (reset_positions_ || packed) places = execution.empty(DType::i32, tokens.shape());
    context.whole_document_start = execution.empty(DType::i32, tokens.shape());
    find(document_end_, context.whole_document_start);
    // The positions of a packed document continue over the ends of documents in it, as if it were
    // alone.
    if (packed && document_end_ >= 0 && !reset_positions_) {
      Tensor unused = execution.empty(DType::i32, tokens.shape());
      find(-1, unused);
    }
    context.document_start = own_tokens(execution, context.whole_document_start, group);
  }
  if (group != nullptr && !places.defined()) {
    places = execution.empty(DType::i32, tokens.shape());
    ops::count_positions(execution, 0, places);
  }
  if (places.defined()) context.positions = own_tokens(execution, places, group);
}

/// Returns the embedding of the tokens plus, if there is a table, that of their positions.
Hidden LanguageModel::embed(Graph& graph, const Tensor& tokens, ForwardContext& context) const {
  const Tensor own = own_tokens(graph.context(), tokens, context.group);
  Hidden hidden{embedding(graph, own, *embedding_, group_), {}};
  if (positions_ != nullptr) {
    Tensor places = context.positions;
    if (!places.defined()) {
      places = graph.context().empty(DType::i32, {context.batch, context.tokens});
      ops::count_positions(graph.context(), 0, places);
    }
    hidden.branch =
        embedding(graph, own_rows(places.view({places.elements()}), group_), *positions_);
  }
  const ops::Dropout drop = context.dropout(embedding_dropout_, "embedding");
  if (!drop) return hidden;
  const Var sum = hidden.branch ? add(graph, hidden.residual, hidden.branch) : hidden.residual;
  return {trainer::dropout(graph, sum, drop, context.batch, group_, context.group), {}};
}

Hidden LanguageModel::pass_layers(Graph& graph, const LayerSpan& layers, Hidden hidden,
                                  ForwardContext& context) const {
  for (std::int64_t layer = layers.begin; layer < layers.end; ++layer) {
    const std::unique_ptr<Block>& block = blocks_[static_cast<std::size_t>(layer)];
    if (!recompute_layers_) {
      hidden = block->forward(graph, hidden, context);
      continue;
    }
    const auto segment = [&block = *block, &context](
                             Graph& inner, const std::vector<Var>& in) -> std::vector<Var> {
      Hidden out = block.forward(inner, {in[0], in[1]}, context);
      return {out.residual, out.branch};
    };
    const std::vector<Var> out = recompute(graph, {hidden.residual, hidden.branch}, segment);
    hidden = {out[0], out[1]};
  }
  return hidden;
}

/// Passes one sum to the next run: half the bytes of its two terms, and the norm there adds
/// nothing.
Hidden LanguageModel::run_layers(Graph& graph, std::size_t run, const Tensor& tokens,
                                 const Hidden& in, ForwardContext& context) const {
  find_places(graph.context(), tokens, context);
  const bool begins = part_.first && run == 0, ends = part_.last && run + 1 == part_.runs.size();
  SORTIE_CHECK(begins != static_cast<bool>(in.residual), "run {} of a stage and its input", run);
  Hidden out =
      pass_layers(graph, part_.runs.at(run), begins ? embed(graph, tokens, context) : in, context);
  if (!ends && out.branch) out = {add(graph, out.residual, out.branch), {}};
  return out;
}

Var LanguageModel::final_hidden(Graph& graph, const Tensor& tokens, ForwardContext& context) const {
  SORTIE_CHECK(part_.whole(), "a stage has no logits");
  const Hidden hidden = run_layers(graph, 0, tokens, {}, context);
  return residual_norm(graph, hidden.residual, hidden.branch, final_norm_).normed;
}

void LanguageModel::head_losses(Graph& graph, const Var& hidden, const Tensor& tokens,
                                const Tensor& targets, float grad_scale, ForwardContext& context,
                                Tensor& loss) const {
  const Tensor own = own_tokens(graph.context(), targets, context.group);
  head_loss(
      graph, enter(graph, hidden, group_), *head_, own.view({own.elements()}),
      {.vocab_size = shape_.vocab_size, .grad_scale = grad_scale, .step_scale = context.grad_scale},
      loss, group_);
  if (mtp_ != nullptr && context.training && graph.recording()) {
    context.mtp_loss = graph.context().zeros(DType::f64, {2});
    mtp_->loss(graph, hidden, tokens, targets, *embedding_, *head_, grad_scale, recompute_layers_,
               context);
  }
  finish_routing(graph.context(), load_coefficient_, context.routers);
}

void LanguageModel::finish_loss(Graph& graph, Hidden out, const Tensor& tokens,
                                const Tensor& targets, float grad_scale, ForwardContext& context,
                                Tensor& loss) const {
  SORTIE_CHECK(part_.last, "only the last stage has the loss");
  const Var hidden = residual_norm(graph, out.residual, out.branch, final_norm_).normed;
  out = {};  // its memory is not needed from here on
  head_losses(graph, hidden, tokens, targets, grad_scale, context, loss);
}

void LanguageModel::loss(Graph& graph, const Tensor& tokens, const Tensor& targets,
                         float grad_scale, ForwardContext& context, Tensor& loss) const {
  context.routers.begin();
  head_losses(graph, final_hidden(graph, tokens, context), tokens, targets, grad_scale, context,
              loss);
}

Tensor LanguageModel::loss(Graph& graph, const Tensor& tokens, const Tensor& targets,
                           float grad_scale, ForwardContext& context) const {
  Tensor result = graph.context().zeros(DType::f64, {2});
  loss(graph, tokens, targets, grad_scale, context, result);
  return result;
}

Tensor LanguageModel::logits(Graph& graph, const Tensor& tokens, ForwardContext context) const {
  SORTIE_CHECK(group_ == nullptr, "logits of a part of the vocabulary");
  const Var hidden = final_hidden(graph, tokens, context);
  Tensor logits = graph.context().empty(DType::f32, {tokens.elements(), shape_.padded_vocab_size});
  ops::linear_forward(graph.context(), hidden.data, head_->packed(), {}, logits);
  return logits.slice(1, 0, shape_.vocab_size);
}

Tensor LanguageModel::last_logits(Graph& graph, const Tensor& tokens,
                                  ForwardContext context) const {
  SORTIE_CHECK(group_ == nullptr, "logits of a part of the vocabulary");
  const std::int64_t batch = tokens.size(0), length = tokens.size(1);
  const Tensor hidden =
      final_hidden(graph, tokens, context).data.view({batch, length, shape_.hidden});
  const Tensor last = hidden.slice(1, length - 1, 1).view({batch, shape_.hidden});
  Tensor logits = graph.context().empty(DType::f32, {batch, shape_.padded_vocab_size});
  ops::linear_forward(graph.context(), last, head_->packed(), {}, logits);
  return logits.slice(1, 0, shape_.vocab_size);
}

}  // namespace sortie::trainer
