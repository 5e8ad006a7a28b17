// Qwen 2 and 2.5 (Yang et al. 2024): LLaMA's block with biases of queries, keys and values; some
// layers may see a window only.
#include "trainer/models/llama_block.h"

namespace sortie::trainer {
namespace {

class Qwen2Block final : public LlamaBlock {
 public:
  Qwen2Block(const BlockArguments& arguments, const std::string& name)
      : LlamaBlock(arguments, name, /*qkv_bias=*/true) {}
};

HfFormat qwen2_format() {
  HfFormat format = hf_llama_format();
  format.model_type = "qwen2";
  format.architecture = "Qwen2ForCausalLM";
  std::erase_if(format.keys, [](const HfKey& key) { return key.name == "head_dim"; });
  for (HfKey& key : format.keys) {
    if (key.name == "vocab_size") key.fallback = 151936;
    if (key.name == "num_key_value_heads") key.fallback = 32;
    if (key.name == "intermediate_size") key.fallback = 22016;
    if (key.name == "max_position_embeddings") key.fallback = 32768;
  }
  format.fixed = {{"hidden_act", "silu", {"swish"}}};
  format.parts = {&kHfRope, &kHfLayerTypes};
  return format;
}

}  // namespace

Family qwen2_family() {
  return {.name = "qwen2",
          .final_norm = ops::NormKind::rms,
          .make_block = make_block<Qwen2Block>,
          .hf = qwen2_format()};
}

}  // namespace sortie::trainer
