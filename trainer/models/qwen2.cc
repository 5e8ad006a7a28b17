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

}  // namespace

Family qwen2_family() {
  return {.name = "qwen2", .final_norm = ops::NormKind::rms, .make_block = make_block<Qwen2Block>};
}

}  // namespace sortie::trainer
