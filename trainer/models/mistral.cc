// Mistral (Jiang et al. 2023): LLaMA's block; where the config has a window, every layer sees that
// many tokens only.
#include "trainer/models/llama_block.h"

namespace sortie::trainer {

Family mistral_family() {
  return {
      .name = "mistral", .final_norm = ops::NormKind::rms, .make_block = make_block<LlamaBlock>};
}

}  // namespace sortie::trainer
