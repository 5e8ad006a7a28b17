// Mixtral (Jiang et al. 2024): Mistral's block with a mixture of experts in every layer. A token's
// top k experts are weighted by the softmax over all, divided by the sum of the k.
#include "trainer/models/llama_block.h"

namespace sortie::trainer {

Family mixtral_family() {
  return {
      .name = "mixtral", .final_norm = ops::NormKind::rms, .make_block = make_block<LlamaBlock>};
}

}  // namespace sortie::trainer
