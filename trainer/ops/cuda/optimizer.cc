// Not there yet.
#include "trainer/ops/cuda/cuda_backend.h"

namespace sortie::trainer::ops::cuda {

void CudaBackend::sum_of_squares(Context&, const Tensor&, Tensor&) {
  SORTIE_CHECK(false, "sum_of_squares is not there yet");
}

void CudaBackend::adamw(Context&, const AdamWStep&, Tensor&, const Tensor&, Tensor&, Tensor&, Tensor&) {
  SORTIE_CHECK(false, "adamw is not there yet");
}

}  // namespace sortie::trainer::ops::cuda
