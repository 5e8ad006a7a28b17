// LLaMA 1 to 3 (Touvron et al. 2023, Dubey et al. 2024): RMSNorm, RoPE, grouped-query attention,
// SwiGLU, no biases. Llama 3.1 stretches RoPE (rope_scaling.h).
#include "trainer/models/llama_block.h"

namespace sortie::trainer {

Family llama_family() {
  return {.name = "llama", .final_norm = ops::NormKind::rms, .make_block = make_block<LlamaBlock>};
}

}  // namespace sortie::trainer
