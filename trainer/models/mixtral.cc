// Mixtral (Jiang et al. 2024): Mistral's block with a mixture of experts in every layer. A token's
// top k experts are weighted by the softmax over all, divided by the sum of the k.
#include "trainer/models/llama_block.h"

namespace sortie::trainer {

namespace {

HfFormat mixtral_format() {
  HfFormat format = hf_llama_format();
  format.model_type = "mixtral";
  format.architecture = "MixtralForCausalLM";
  for (HfKey& key : format.keys) {
    if (key.name == "num_key_value_heads") key.fallback = 8;
    if (key.name == "intermediate_size") key.fallback = 14336;
    if (key.name == "max_position_embeddings") key.fallback = 131072;
    if (key.name == "rms_norm_eps") key.fallback = 1e-5;
  }
  format.fixed = {{"hidden_act", "silu", {"swish"}}, {"router_jitter_noise", 0.0}};
  format.parts = {&kHfMixtralRope, &kHfMixtralWindow, &kHfMixtral};
  std::erase_if(format.modules, [](const HfModule& module) {
    return module.ours.find(".mlp.") != module.ours.npos;
  });
  const std::string_view gate_up = "layers.{}.mlp.experts.{e}.gate_up";
  format.modules.push_back({"model.layers.{}.block_sparse_moe.gate", "layers.{}.mlp.router"});
  format.modules.push_back({"model.layers.{}.block_sparse_moe.experts.{e}.w1", gate_up, "gate"});
  format.modules.push_back({"model.layers.{}.block_sparse_moe.experts.{e}.w3", gate_up, "up"});
  format.modules.push_back(
      {"model.layers.{}.block_sparse_moe.experts.{e}.w2", "layers.{}.mlp.experts.{e}.down"});
  return format;
}

}  // namespace

Family mixtral_family() {
  return {.name = "mixtral",
          .final_norm = ops::NormKind::rms,
          .make_block = make_block<LlamaBlock>,
          .hf = mixtral_format()};
}

}  // namespace sortie::trainer
