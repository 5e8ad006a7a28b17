// Not there yet.
#include "trainer/ops/cuda/cuda_backend.h"

namespace sortie::trainer::ops::cuda {

void CudaBackend::residual_norm_forward(Context&, NormKind, const Tensor&, const Tensor&, const Tensor&, const Tensor&, float, Tensor&, Tensor&, Tensor&) {
  SORTIE_CHECK(false, "residual_norm_forward is not there yet");
}

void CudaBackend::residual_norm_backward(Context&, NormKind, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, Tensor&, Tensor&, Tensor&) {
  SORTIE_CHECK(false, "residual_norm_backward is not there yet");
}

}  // namespace sortie::trainer::ops::cuda
