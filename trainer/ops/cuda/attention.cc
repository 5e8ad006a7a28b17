// Not there yet.
#include "trainer/ops/cuda/cuda_backend.h"

namespace sortie::trainer::ops::cuda {

void CudaBackend::rope(Context&, Tensor&, const RopeTable&, const Tensor&, bool) {
  SORTIE_CHECK(false, "rope is not there yet");
}

void CudaBackend::attention_forward(Context&, const Tensor&, const Tensor&, const Tensor&, const AttentionMask&, Tensor&, Tensor&) {
  SORTIE_CHECK(false, "attention_forward is not there yet");
}

void CudaBackend::attention_backward(Context&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const AttentionMask&, Tensor&, Tensor&, Tensor&) {
  SORTIE_CHECK(false, "attention_backward is not there yet");
}

void CudaBackend::attention_cached(Context&, const Tensor&, const Tensor&, const Tensor&, const AttentionMask&, Tensor&) {
  SORTIE_CHECK(false, "attention_cached is not there yet");
}

void CudaBackend::latent_keys_forward(Context&, const Tensor&, const Tensor&, Tensor&) {
  SORTIE_CHECK(false, "latent_keys_forward is not there yet");
}

void CudaBackend::latent_keys_backward(Context&, const Tensor&, Tensor&, Tensor&) {
  SORTIE_CHECK(false, "latent_keys_backward is not there yet");
}

}  // namespace sortie::trainer::ops::cuda
