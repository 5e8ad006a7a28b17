#include "common/model/network.h"

#include <fmt/core.h>

namespace sortie::model {

Network::Network(const config::ModelConfig& config)
    : config_(config),
      architecture_(&config::architecture_of(config)),
      shape_(resolve_shape(config)) {
  const auto depths = static_cast<double>(config.mtp.num_layers);
  const std::int64_t unused_rows = shape_.padded_vocab_size - shape_.vocab_size;
  const auto table = [&](const char* name, double products) {
    return declare({.name = name,
                    .shape = {shape_.padded_vocab_size, shape_.hidden},
                    .products = products,
                    .padding = unused_rows * shape_.hidden});
  };
  embedding_ = table("embedding.weight", shape_.tied ? 1.0 + depths : 0.0);
  if (!architecture_->rope)
    positions_ = declare({.name = "positions.weight",
                          .shape = {shape_.num_positions, shape_.hidden},
                          .products = 0.0});
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer)
    layers_.push_back(declare_layer(layer));
  final_norm_ = declare_norm("final_norm", shape_.hidden);
  head_ = shape_.tied ? embedding_ : table("head.weight", 1.0 + depths);
  for (std::int64_t k = 0; k < config.mtp.num_layers; ++k) {
    const std::string name = fmt::format("layers.{}", shape_.layers + k);
    Depth depth;
    depth.token_norm = declare_norm(name + ".token_norm", shape_.hidden);
    depth.hidden_norm = declare_norm(name + ".hidden_norm", shape_.hidden);
    depth.join = declare_linear(name + ".join", shape_.hidden, 2 * shape_.hidden, false);
    depth.layer = declare_layer(shape_.layers + k);
    depth.final_norm = declare_norm(name + ".final_norm", shape_.hidden);
    depths_.push_back(depth);
  }
}

Network::Index Network::declare(ParameterInfo parameter) {
  parameter.trained = parameter.use != Use::state;
  facts_.parameters.push_back(std::move(parameter));
  return facts_.parameters.size() - 1;
}

Network::Index Network::declare_linear(const std::string& name, std::int64_t out, std::int64_t in,
                                       bool bias) {
  const Index weight = declare({.name = name + ".weight", .shape = {out, in}});
  if (bias) declare({.name = name + ".bias", .shape = {out}, .use = Use::vector});
  return weight;
}

Network::Index Network::declare_norm(const std::string& name, std::int64_t size) {
  const Index weight = declare({.name = name + ".weight", .shape = {size}, .use = Use::vector});
  if (architecture_->layer_norm)
    declare({.name = name + ".bias", .shape = {size}, .use = Use::vector});
  return weight;
}

Module Network::module(Index weight) const {
  const Module all(facts_.parameters);
  const bool bias = weight + 1 < all.size() && all[weight + 1].name.ends_with(".bias") &&
                    all[weight + 1].use == Use::vector;
  return all.subspan(weight, bias ? 2 : 1);
}

void Network::find_flow() {
  Meter meter;
  const Machine machine;
  Tape tape(meter, machine, Tape::Mode::record);
  Flow flow;
  tape.set_flow(&flow);
  forward(tape, 1, false);
  for (ParameterInfo& parameter : facts_.parameters)
    parameter.backward = flow.products.contains(&parameter) || parameter.trained;
  facts_.attention_backward = flow.attention;
}

void Network::declare_attention(const std::string& name, Layer& layer) {
  const ModelShape& s = shape_;
  const std::int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const bool qkv_bias = architecture_->qkv_bias;
  if (architecture_->latent) {
    const config::MlaConfig& mla = config_.mla;
    if (mla.q_lora_rank > 0) {
      layer.query_down = declare_linear(name + ".q_a", mla.q_lora_rank, s.hidden, false);
      layer.query_norm = declare_norm(name + ".q_a_norm", mla.q_lora_rank);
      layer.query = declare_linear(name + ".q_b", q, mla.q_lora_rank, false);
    } else {
      layer.query = declare_linear(name + ".q", q, s.hidden, false);
    }
    layer.key_value_down =
        declare_linear(name + ".kv_a", mla.kv_lora_rank + mla.qk_rope_head_dim, s.hidden, false);
    layer.key_norm = declare_norm(name + ".kv_a_norm", mla.kv_lora_rank);
    layer.key_value = declare_linear(
        name + ".kv_b", s.heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank, false);
  } else if (architecture_->head_norm) {
    layer.query = declare_linear(name + ".q", q, s.hidden, qkv_bias);
    layer.query_norm = declare_norm(name + ".q_norm", s.head_dim);
    layer.key = declare_linear(name + ".k", kv, s.hidden, qkv_bias);
    layer.key_norm = declare_norm(name + ".k_norm", s.head_dim);
    layer.value = declare_linear(name + ".v", kv, s.hidden, qkv_bias);
  } else {
    layer.qkv = declare_linear(name + ".qkv", q + 2 * kv, s.hidden, qkv_bias);
  }
  layer.out = declare_linear(name + ".out", s.hidden, s.heads * s.value_dim, architecture_->biases);
}

void Network::declare_feed_forward(const std::string& name, std::int64_t index, Layer& layer) {
  const ModelShape& s = shape_;
  if (!config::is_mixture(config_, index)) {
    const bool gated = architecture_->gated_mlp, bias = architecture_->biases;
    layer.up = declare_linear(name + (gated ? ".gate_up" : ".up"), gated ? 2 * s.ffn : s.ffn,
                              s.hidden, bias);
    layer.down = declare_linear(name + ".down", s.hidden, s.ffn, bias);
    return;
  }
  const config::MoeConfig& moe = config_.moe;
  const std::int64_t ffn = expert_ffn(config_, s);
  layer.router = declare({.name = name + ".router.weight",
                          .shape = {moe.num_experts, s.hidden},
                          .use = Use::f32_matrix});
  if (architecture_->latent)
    declare({.name = name + ".router.bias", .shape = {moe.num_experts}, .use = Use::state});
  const double share = static_cast<double>(moe.topk) / static_cast<double>(moe.num_experts);
  for (std::int64_t e = 0; e < moe.num_experts; ++e) {
    const std::string expert = fmt::format("{}.experts.{}", name, e);
    const Index first = declare(
        {.name = expert + ".gate_up.weight", .shape = {2 * ffn, s.hidden}, .products = share});
    declare({.name = expert + ".down.weight", .shape = {s.hidden, ffn}, .products = share});
    if (e == 0) layer.experts = first;
  }
  if (const std::int64_t shared = moe.num_shared_experts * ffn; shared > 0) {
    layer.shared_up = declare_linear(name + ".shared.gate_up", 2 * shared, s.hidden, false);
    layer.shared_down = declare_linear(name + ".shared.down", s.hidden, shared, false);
  }
}

Network::Layer Network::declare_layer(std::int64_t index) {
  const std::string name = fmt::format("layers.{}", index);
  Layer layer;
  layer.attention_norm = declare_norm(name + ".attention_norm", shape_.hidden);
  declare_attention(name + ".attention", layer);
  layer.mlp_norm = declare_norm(name + ".mlp_norm", shape_.hidden);
  declare_feed_forward(name + ".mlp", index, layer);
  return layer;
}

namespace {

void note_attention(const Tape& tape) {
  if (tape.flow() != nullptr) tape.flow()->attention.push_back(tape.flows());
}

}  // namespace

Value Network::attend(Tape& tape, const Layer& layer, const Value& h, std::int64_t batch) const {
  const ModelShape& s = shape_;
  const Heads heads{batch, s.sequence_length, s.heads, s.kv_heads, s.head_dim, s.value_dim};
  if (architecture_->latent) {
    Value q = h;
    if (layer.query_down != kNone)
      q = residual_norm(tape, apply(tape, layer.query_down, h), {}, module(layer.query_norm))
              .normed;
    q = apply(tape, layer.query, q);
    const auto [latent, rope_key] =
        split(tape, apply(tape, layer.key_value_down, h), config_.mla.kv_lora_rank);
    const Value kv = apply(tape, layer.key_value,
                           residual_norm(tape, latent, {}, module(layer.key_norm)).normed);
    note_attention(tape);
    return latent_attention(tape, q, kv, rope_key, heads);
  }
  if (!architecture_->head_norm) {
    const Value qkv = apply(tape, layer.qkv, h);
    note_attention(tape);
    return attention(tape, qkv, heads);
  }
  const Value q =
      head_norm(tape, apply(tape, layer.query, h), s.head_dim, module(layer.query_norm));
  const Value k = head_norm(tape, apply(tape, layer.key, h), s.head_dim, module(layer.key_norm));
  const Value v = apply(tape, layer.value, h);
  note_attention(tape);
  const Value turned_q = rope(tape, q), turned_k = rope(tape, k);
  return attention(tape, turned_q, turned_k, v, heads);
}

Value Network::feed_forward(Tape& tape, const Layer& layer, const Value& h,
                            std::int64_t batch) const {
  if (layer.router == kNone) {
    const auto activation = [&](const Value& x) {
      return architecture_->gated_mlp ? swiglu(tape, x) : gelu(tape, x);
    };
    return apply(tape, layer.down, activation(apply(tape, layer.up, h)));
  }
  const config::MoeConfig& moe = config_.moe;
  const auto experts = 2 * static_cast<std::size_t>(moe.num_experts);
  Value mixed = mixture(tape, h,
                        {.top_k = moe.topk,
                         .losses = moe.seq_aux_loss_coeff > 0 || moe.aux_loss_coeff > 0,
                         .sequences = batch,
                         .router = module(layer.router).subspan(0, 1),
                         .experts = Module(facts_.parameters).subspan(layer.experts, experts)});
  if (layer.shared_up == kNone) return mixed;
  return add(tape, mixed,
             apply(tape, layer.shared_down, swiglu(tape, apply(tape, layer.shared_up, h))));
}

Network::Hidden Network::forward(Tape& tape, const Layer& layer, const Hidden& in,
                                 std::int64_t batch) const {
  const double drop = config_.residual_dropout;
  const auto [x, h] = residual_norm(tape, in.residual, in.branch, module(layer.attention_norm));
  const Value attended = dropout(tape, apply(tape, layer.out, attend(tape, layer, h, batch)), drop);
  if (architecture_->name == "gpt-neo-x" && config_.parallel_residual) {
    const auto [same, h2] = residual_norm(tape, x, {}, module(layer.mlp_norm));
    return {same, add(tape, attended, dropout(tape, feed_forward(tape, layer, h2, batch), drop))};
  }
  const auto [x2, h2] = residual_norm(tape, x, attended, module(layer.mlp_norm));
  return {x2, dropout(tape, feed_forward(tape, layer, h2, batch), drop)};
}

Value Network::final_hidden(Tape& tape, std::int64_t batch, bool recompute_layers) const {
  const std::int64_t rows = batch * shape_.sequence_length;
  Hidden hidden{embedding(tape, rows, module(embedding_)), {}};
  if (positions_ != kNone) hidden.branch = embedding(tape, rows, module(positions_));
  if (config_.embedding_dropout > 0) {
    const Value sum = hidden.branch ? add(tape, hidden.residual, hidden.branch) : hidden.residual;
    hidden = {dropout(tape, sum, config_.embedding_dropout), {}};
  }
  for (const Layer& layer : layers_) {
    if (!recompute_layers) {
      hidden = forward(tape, layer, hidden, batch);
      continue;
    }
    const auto segment = [this, &layer, batch](Tape& inner, const std::vector<Value>& in) {
      Hidden out = forward(inner, layer, {in[0], in[1]}, batch);
      return std::vector<Value>{out.residual, out.branch};
    };
    const std::vector<Value> out = recompute(tape, {hidden.residual, hidden.branch}, segment);
    hidden = {out[0], out[1]};
  }
  return residual_norm(tape, hidden.residual, hidden.branch, module(final_norm_)).normed;
}

/// Up to the losses; what no backward step needs is gone at the end.
void Network::forward(Tape& tape, std::int64_t batch, bool recompute_layers) const {
  const std::int64_t length = shape_.sequence_length;
  Value h = final_hidden(tape, batch, recompute_layers);
  head_loss(tape, h, shape_.vocab_size, module(head_));
  for (const Depth& depth : depths_) {
    const Sized ahead = tape.empty(batch, length, kI32), labels = tape.empty(batch, length, kI32);
    const auto segment = [this, &depth, ahead, batch](Tape& inner, const std::vector<Value>& in) {
      const Value token = embedding(inner, ahead.rows * ahead.columns, module(embedding_));
      const Value joined =
          concat(inner, residual_norm(inner, token, {}, module(depth.token_norm)).normed,
                 residual_norm(inner, in[0], {}, module(depth.hidden_norm)).normed);
      const Hidden out = forward(inner, depth.layer, {apply(inner, depth.join, joined), {}}, batch);
      return std::vector<Value>{
          residual_norm(inner, out.residual, out.branch, module(depth.final_norm)).normed};
    };
    h = recompute_layers ? recompute(tape, {h}, segment)[0] : segment(tape, {h})[0];
    head_loss(tape, h, shape_.vocab_size, module(head_));
  }
}

void Network::train(Meter& meter, const Machine& machine, std::int64_t batch,
                    bool recompute_layers) const {
  const std::int64_t length = shape_.sequence_length;
  Tape tape(meter, machine, Tape::Mode::record);
  const Sized tokens = tape.empty(batch, length, kI32), targets = tape.empty(batch, length, kI32);
  Sized places, documents;
  if (positions_ != kNone || config_.reset_positions) places = tape.empty(batch, length, kI32);
  if (config_.document_end_token >= 0) documents = tape.empty(batch, length, kI32);
  forward(tape, batch, recompute_layers);
  tape.backward({});
}

}  // namespace sortie::model
