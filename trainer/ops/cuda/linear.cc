// Not there yet.
#include "trainer/ops/cuda/cuda_backend.h"

namespace sortie::trainer::ops::cuda {

void CudaBackend::weight_changed(Context&, const PackedWeight&) {
  SORTIE_CHECK(false, "weight_changed is not there yet");
}

void CudaBackend::linear_forward(Context&, const Tensor&, const PackedWeight&, const Tensor&, Tensor&) {
  SORTIE_CHECK(false, "linear_forward is not there yet");
}

void CudaBackend::linear_backward_data(Context&, const Tensor&, const PackedWeight&, Tensor&) {
  SORTIE_CHECK(false, "linear_backward_data is not there yet");
}

void CudaBackend::linear_backward_weight(Context&, const Tensor&, const Tensor&, Tensor&, Tensor&) {
  SORTIE_CHECK(false, "linear_backward_weight is not there yet");
}

void CudaBackend::merge_low_rank(Context&, Tensor&, const Tensor&, float, Tensor&) {
  SORTIE_CHECK(false, "merge_low_rank is not there yet");
}

}  // namespace sortie::trainer::ops::cuda
