// DeepSeek-V3 block (DeepSeek-AI 2024): multi-head latent attention, then a plain MLP in the first
// layers and a mixture with shared experts in the others.
//   c_q = RMSNorm(Wq_a h), q = Wq_b c_q          (without q_lora: q = Wq h)
//   [c, k_r] = Wkv_a h,  [k_n, v] = Wkv_b RMSNorm(c) per head
//   x += Wo . attention([q_n, RoPE(q_r)], [k_n, RoPE(k_r)], v),  h = RMSNorm(x); heads share k_r
//   x += mixture(RMSNorm(x))
// RoPE rotates pairs of neighbouring dimensions. If YaRN scales it, attention scores are also
// multiplied by the square of YaRN's temperature.
#include <cmath>

#include "trainer/models/attention_module.h"
#include "trainer/models/mixture.h"
#include "trainer/models/rope_scaling.h"

namespace sortie::trainer {
namespace {

constexpr double kLatentNormEpsilon = 1e-6;  // independent of the model's other norms

class DeepseekV3Block final : public Block {
 public:
  DeepseekV3Block(const BlockArguments& arguments, const std::string& name)
      : shape_(arguments.shape),
        latent_(arguments.config.mla.kv_lora_rank),
        scale_(attention_scale(arguments.config)),
        attention_dropout_(arguments.config.attention_dropout),
        place_(name + ".attention"),
        own_(arguments.shape, arguments.store.tensor_group()),
        group_(arguments.store.tensor_group()),
        rope_(arguments.rope),
        drop_attention_(arguments, name + ".attention.out"),
        drop_mlp_(arguments, name + ".mlp.down"),
        attention_norm_(add_norm(arguments.store, name + ".attention_norm", ops::NormKind::rms,
                                 arguments.shape.hidden, arguments.config.norm_epsilon)) {
    const auto& [config, s, layer, store, rope] = arguments;
    const config::MlaConfig& mla = config.mla;
    const double std_dev = config.init_std;
    const auto latent_norm = [&store_ = store](const std::string& norm, std::int64_t size) {
      return add_norm(store_, norm, ops::NormKind::rms, size, kLatentNormEpsilon);
    };
    if (mla.q_lora_rank > 0) {
      query_down_ = add_linear(store, place_ + ".q_a", mla.q_lora_rank, s.hidden, std_dev, false);
      query_norm_ = latent_norm(place_ + ".q_a_norm", mla.q_lora_rank);
    }
    query_ = add_linear(store, place_ + (mla.q_lora_rank > 0 ? ".q_b" : ".q"), s.heads * s.head_dim,
                        mla.q_lora_rank > 0 ? mla.q_lora_rank : s.hidden, std_dev, false,
                        {{"heads", s.heads * s.head_dim, s.head_dim}}, LinearCut::outputs);
    key_value_down_ =
        add_linear(store, place_ + ".kv_a", latent_ + mla.qk_rope_head_dim, s.hidden, std_dev,
                   false, {{"latent", latent_}, {"rope", mla.qk_rope_head_dim}});
    key_value_norm_ = latent_norm(place_ + ".kv_a_norm", latent_);
    key_value_ =
        add_linear(store, place_ + ".kv_b", s.heads * (mla.qk_nope_head_dim + mla.v_head_dim),
                   latent_, std_dev, false,
                   {{"heads", s.heads * (mla.qk_nope_head_dim + mla.v_head_dim),
                     mla.qk_nope_head_dim + mla.v_head_dim}},
                   LinearCut::outputs);
    out_ = add_linear(store, place_ + ".out", s.hidden, s.heads * mla.v_head_dim,
                      residual_std(std_dev, s.layers), false, {}, LinearCut::inputs);
    mlp_norm_ =
        add_norm(store, name + ".mlp_norm", ops::NormKind::rms, s.hidden, config.norm_epsilon);
    mlp_.emplace(arguments, name + ".mlp");
  }

  Hidden forward(Graph& graph, const Hidden& in, ForwardContext& context) const override {
    const auto [x, h] = residual_norm(graph, in.residual, in.branch, attention_norm_);
    const Var attended = drop_attention_(graph, out_(graph, attend(graph, h, context)), context);
    const auto [x2, h2] = residual_norm(graph, x, attended, mlp_norm_);
    return {x2, drop_mlp_(graph, (*mlp_)(graph, h2, context), context)};
  }

 private:
  static float attention_scale(const config::ModelConfig& config) {
    const double width =
        static_cast<double>(config.mla.qk_nope_head_dim + config.mla.qk_rope_head_dim);
    const double temperature = rope_temperature(config);
    return static_cast<float>(temperature * temperature / std::sqrt(width));
  }

  Var attend(Graph& graph, const Var& h, const ForwardContext& context) const {
    Var q = h;
    if (query_down_.weight != nullptr)
      q = residual_norm(graph, query_down_(graph, h), {}, query_norm_).normed;
    q = query_(graph, q);
    const auto [latent, rope_key] = split(graph, key_value_down_(graph, h), latent_);
    const Var kv = key_value_(graph, residual_norm(graph, latent, {}, key_value_norm_).normed);
    const AttentionShape attention{context.batch,   context.tokens,   own_.heads,   own_.heads,
                                   shape_.head_dim, shape_.value_dim, context.group};
    const ops::AttentionMask mask{
        .scale = scale_,
        .document_start = context.document_start,
        .dropout =
            own_.of_scores(context.dropout(attention_dropout_, place_), context.whole_tokens())};
    // Every rank needs the RoPE key, which the heads of all ranks share.
    return latent_attention(graph, q, kv, enter(graph, rope_key, group_), attention,
                            {&rope_, context.positions}, mask);
  }

  const ModelShape& shape_;
  std::int64_t latent_;
  float scale_;
  double attention_dropout_;
  std::string place_;
  OwnHeads own_;
  const TensorGroup* group_;
  const ops::RopeTable& rope_;
  ResidualDropout drop_attention_, drop_mlp_;
  NormParameters attention_norm_, query_norm_{}, key_value_norm_{}, mlp_norm_{};
  LinearModule query_down_, query_, key_value_down_, key_value_, out_;
  std::optional<FeedForward> mlp_;
};

HfFormat deepseek_v3_format() {
  using M = config::ModelConfig;
  HfFormat format{.model_type = "deepseek_v3",
                  .architecture = "DeepseekV3ForCausalLM",
                  .prefix = "model.",
                  .keys = {{"vocab_size", &M::vocab_size, 129280},
                           {"hidden_size", &M::hidden_size, 7168},
                           {"num_hidden_layers", &M::num_layers, 61},
                           {"num_attention_heads", &M::num_attention_heads, 128},
                           {"num_key_value_heads", &M::attention_num_kv_heads},
                           {"intermediate_size", &M::ffn_hidden_size, 18432},
                           {"max_position_embeddings", &M::num_positions, 4096},
                           {"rms_norm_eps", &M::norm_epsilon, 1e-6},
                           {"attention_dropout", &M::attention_dropout},
                           {"initializer_range", &M::init_std, 0.02},
                           {"tie_word_embeddings", &M::weight_tying, false}},
                  .fixed = {{"hidden_act", "silu", {"swish"}},
                            {"attention_bias", false},
                            {"rope_interleave", true},
                            // Keys of DeepSeek's own files; transformers implements these values
                            // only.
                            {"scoring_func", "sigmoid"},
                            {"topk_method", "noaux_tc"},
                            {"moe_layer_freq", 1}},
                  .parts = {&kHfRope, &kHfDeepseekV3},
                  .modules = {{"model.embed_tokens", "embedding"},
                              {"model.norm", "final_norm"},
                              {"lm_head", "head"}},
                  .buffers = {".rotary_emb.inv_freq"}};
  const HfModule layer[] = {
      {"model.layers.{}.input_layernorm", "layers.{}.attention_norm"},
      {"model.layers.{}.self_attn.q_proj", "layers.{}.attention.q"},
      {"model.layers.{}.self_attn.q_a_proj", "layers.{}.attention.q_a"},
      {"model.layers.{}.self_attn.q_a_layernorm", "layers.{}.attention.q_a_norm"},
      {"model.layers.{}.self_attn.q_b_proj", "layers.{}.attention.q_b"},
      {"model.layers.{}.self_attn.kv_a_proj_with_mqa", "layers.{}.attention.kv_a"},
      {"model.layers.{}.self_attn.kv_a_layernorm", "layers.{}.attention.kv_a_norm"},
      {"model.layers.{}.self_attn.kv_b_proj", "layers.{}.attention.kv_b"},
      {"model.layers.{}.self_attn.o_proj", "layers.{}.attention.out"},
      {"model.layers.{}.post_attention_layernorm", "layers.{}.mlp_norm"},
      {"model.layers.{}.mlp.gate_proj", "layers.{}.mlp.gate_up", "gate"},
      {"model.layers.{}.mlp.up_proj", "layers.{}.mlp.gate_up", "up"},
      {"model.layers.{}.mlp.down_proj", "layers.{}.mlp.down"}};
  std::vector<HfModule> block(std::begin(layer), std::end(layer));
  add_hf_mixture(block);
  format.modules.insert(format.modules.end() - 2, block.begin(), block.end());
  format.mtp_modules = {{"model.layers.{}.enorm", "layers.{}.token_norm"},
                        {"model.layers.{}.hnorm", "layers.{}.hidden_norm"},
                        {"model.layers.{}.eh_proj", "layers.{}.join"}};
  format.mtp_modules.insert(format.mtp_modules.end(), block.begin(), block.end());
  format.mtp_modules.push_back({"model.layers.{}.shared_head.norm", "layers.{}.final_norm"});
  return format;
}

}  // namespace

Family deepseek_v3_family() {
  return {.name = "deepseek-v3",
          .final_norm = ops::NormKind::rms,
          .make_block = make_block<DeepseekV3Block>,
          .hf = deepseek_v3_format(),
          .router = ops::RouterScore::sigmoid};
}

}  // namespace sortie::trainer
