// The keys of config.json that correspond to [model.moe], [model.mla] and [model.mtp].
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "trainer/models/hf_format.h"

namespace sortie::trainer {
namespace {

using Json = nlohmann::json;
using config::ModelConfig;

/// A key that corresponds to a member of a section below [model]. `absent`: the value if the key is
/// absent, `null`: the value if it is null.
struct Key {
  std::string_view name;
  std::variant<std::int64_t& (*)(ModelConfig&), double& (*)(ModelConfig&), bool& (*)(ModelConfig&)>
      member;
  double absent = 0.0, null = 0.0;
};

template <auto Section, auto Member>
auto& member(ModelConfig& model) {
  return model.*Section.*Member;
}
template <auto Member>
constexpr auto kMoe = member<&ModelConfig::moe, Member>;
template <auto Member>
constexpr auto kMla = member<&ModelConfig::mla, Member>;

Result<> unsupported(std::string text) {
  return fail(ErrorCode::unsupported, std::move(text));
}

bool suits(const Json& value, std::int64_t) {
  return value.is_number_integer();
}
bool suits(const Json& value, double) {
  return value.is_number();
}
bool suits(const Json& value, bool) {
  return value.is_boolean();
}

Result<> read_keys(std::span<const Key> keys, const Json& json, ModelConfig& model) {
  for (const Key& key : keys) {
    const auto found = json.find(key.name);
    const bool good = std::visit(
        [&](auto member) {
          auto& value = member(model);
          using T = std::remove_reference_t<decltype(value)>;
          if (found == json.end() || found->is_null()) {
            value = static_cast<T>(found == json.end() ? key.absent : key.null);
            return true;
          }
          if (!suits(*found, T{})) return false;
          value = found->get<T>();
          return true;
        },
        key.member);
    if (!good)
      return unsupported(
          fmt::format("{} is {}, which is of the wrong kind", key.name, found->dump()));
  }
  return {};
}

/// Leaves a key unchanged if it already expresses the model's value.
void write_keys(std::span<const Key> keys, const ModelConfig& model, Json& json) {
  for (const Key& key : keys) {
    ModelConfig old = model, now = model;
    const bool same =
        json.contains(key.name) && read_keys({&key, 1}, json, old) &&
        std::visit([&](auto member) { return member(old) == member(now); }, key.member);
    if (!same)
      std::visit([&](auto member) { json[std::string(key.name)] = member(now); }, key.member);
  }
}

/// transformers adds the balance loss only if output_router_logits is true.
Result<> read_balance(const Json& json, ModelConfig& model) {
  const auto on = json.find("output_router_logits");
  model.moe.aux_loss_coeff = 0.0;
  if (on == json.end() || !on->is_boolean() || !on->get<bool>()) return {};
  static const Key kKey{"router_aux_loss_coef", kMoe<&config::MoeConfig::aux_loss_coeff>, 0.001};
  return read_keys({&kKey, 1}, json, model);
}
void write_balance(const ModelConfig& model, Json& json) {
  ModelConfig old = model;
  if (read_balance(json, old) && old.moe.aux_loss_coeff == model.moe.aux_loss_coeff) return;
  json["output_router_logits"] = model.moe.aux_loss_coeff > 0;
  json["router_aux_loss_coef"] = model.moe.aux_loss_coeff;
}

const Key kMixtralKeys[] = {
    {"num_local_experts", kMoe<&config::MoeConfig::num_experts>, 8},
    {"num_experts_per_tok", kMoe<&config::MoeConfig::topk>, 2},
};
Result<> read_mixtral(const Json& json, ModelConfig& model) {
  SORTIE_TRY(read_keys(kMixtralKeys, json, model));
  return read_balance(json, model);
}
Result<> write_mixtral(const ModelConfig& model, Json& json) {
  write_keys(kMixtralKeys, model, json);
  write_balance(model, json);
  return {};
}

const Key kQwenKeys[] = {
    {"num_experts_per_tok", kMoe<&config::MoeConfig::topk>, 8},
    {"moe_intermediate_size", kMoe<&config::MoeConfig::ffn_hidden_size>, 768},
    {"decoder_sparse_step", kMoe<&config::MoeConfig::layer_step>, 1},
    {"norm_topk_prob", kMoe<&config::MoeConfig::normalize_topk>, false},
};
/// transformers 4 calls the key num_experts, transformers 5 num_local_experts.
Key qwen_experts(const Json& json) {
  return {json.contains("num_local_experts") ? "num_local_experts" : "num_experts",
          kMoe<&config::MoeConfig::num_experts>, 128};
}
Result<> read_qwen3_moe(const Json& json, ModelConfig& model) {
  SORTIE_TRY(read_keys(kQwenKeys, json, model));
  const Key experts = qwen_experts(json);
  SORTIE_TRY(read_keys({&experts, 1}, json, model));
  const auto plain = json.find("mlp_only_layers");
  if (plain != json.end() && !plain->is_null() && !plain->empty())
    return unsupported(fmt::format("mlp_only_layers is {}; only decoder_sparse_step is implemented",
                                   plain->dump()));
  return read_balance(json, model);
}
Result<> write_qwen3_moe(const ModelConfig& model, Json& json) {
  write_keys(kQwenKeys, model, json);
  const Key experts = qwen_experts(json);
  write_keys({&experts, 1}, model, json);
  write_balance(model, json);
  return {};
}

const Key kDeepseekKeys[] = {
    {"n_routed_experts", kMoe<&config::MoeConfig::num_experts>, 256},
    {"num_experts_per_tok", kMoe<&config::MoeConfig::topk>, 8},
    {"moe_intermediate_size", kMoe<&config::MoeConfig::ffn_hidden_size>, 2048},
    {"n_shared_experts", kMoe<&config::MoeConfig::num_shared_experts>, 1},
    {"first_k_dense_replace", kMoe<&config::MoeConfig::first_dense_layers>, 3},
    {"norm_topk_prob", kMoe<&config::MoeConfig::normalize_topk>, true},
    {"routed_scaling_factor", kMoe<&config::MoeConfig::scaling_factor>, 2.5},
    {"n_group", kMoe<&config::MoeConfig::num_groups>, 8, 1},
    {"topk_group", kMoe<&config::MoeConfig::group_topk>, 4, 1},
    {"q_lora_rank", kMla<&config::MlaConfig::q_lora_rank>, 1536, 0},
    {"kv_lora_rank", kMla<&config::MlaConfig::kv_lora_rank>, 512},
    {"qk_nope_head_dim", kMla<&config::MlaConfig::qk_nope_head_dim>, 128},
    {"qk_rope_head_dim", kMla<&config::MlaConfig::qk_rope_head_dim>, 64},
    {"v_head_dim", kMla<&config::MlaConfig::v_head_dim>, 128},
};
const Key kMtpKey{"num_nextn_predict_layers",
                  member<&ModelConfig::mtp, &config::MtpConfig::num_layers>, 1};

Result<> read_deepseek(const Json& json, ModelConfig& model) {
  SORTIE_TRY(read_keys(kDeepseekKeys, json, model));
  return read_keys({&kMtpKey, 1}, json, model);
}
Result<> write_deepseek(const ModelConfig& model, Json& json) {
  if (model.moe.num_shared_experts == 0)
    return unsupported(
        "model.moe.num_shared_experts = 0: DeepseekV3ForCausalLM of transformers has always one");
  write_keys(kDeepseekKeys, model, json);
  if (model.mla.q_lora_rank == 0) json["q_lora_rank"] = nullptr;
  // A folder may announce such layers without having them: then its value stays.
  if (model.mtp.num_layers > 0 || !json.contains(kMtpKey.name))
    write_keys({&kMtpKey, 1}, model, json);
  return {};
}

}  // namespace

const HfPart kHfMixtral{read_mixtral, write_mixtral};
const HfPart kHfQwen3Moe{read_qwen3_moe, write_qwen3_moe};
const HfPart kHfDeepseekV3{read_deepseek, write_deepseek};

}  // namespace sortie::trainer
