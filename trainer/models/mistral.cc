// Mistral (Jiang et al. 2023): LLaMA's block; where the config has a window, every layer sees that
// many tokens only.
#include "trainer/models/llama_block.h"

namespace sortie::trainer {

namespace {

HfFormat mistral_format() {
  HfFormat format = hf_llama_format();
  format.model_type = "mistral";
  format.architecture = "MistralForCausalLM";
  for (HfKey& key : format.keys) {
    if (key.name == "num_key_value_heads") key.fallback = 8;
    if (key.name == "intermediate_size") key.fallback = 14336;
    if (key.name == "max_position_embeddings") key.fallback = 131072;
  }
  format.fixed = {{"hidden_act", "silu", {"swish"}}};
  format.parts = {&kHfRope, &kHfMistralWindow};
  return format;
}

}  // namespace

Family mistral_family() {
  return {.name = "mistral",
          .final_norm = ops::NormKind::rms,
          .make_block = make_block<LlamaBlock>,
          .hf = mistral_format()};
}

}  // namespace sortie::trainer
