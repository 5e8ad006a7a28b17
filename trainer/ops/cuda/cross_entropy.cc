// Not there yet.
#include "trainer/ops/cuda/cuda_backend.h"

namespace sortie::trainer::ops::cuda {

void CudaBackend::linear_cross_entropy(Context&, const Tensor&, const PackedWeight&, const Tensor&, const CrossEntropySpec&, Tensor&, Tensor&, Tensor&) {
  SORTIE_CHECK(false, "linear_cross_entropy is not there yet");
}

void CudaBackend::begin_cross_entropy(Context&, const Tensor&, const PackedWeight&, const Tensor&, const CrossEntropySpec&, bool, CrossEntropyPart&) {
  SORTIE_CHECK(false, "begin_cross_entropy is not there yet");
}

void CudaBackend::finish_cross_entropy(Context&, const Tensor&, const PackedWeight&, const Tensor&, const CrossEntropySpec&, const CrossEntropyPart&, const Tensor&, Tensor&, Tensor&, Tensor&) {
  SORTIE_CHECK(false, "finish_cross_entropy is not there yet");
}

}  // namespace sortie::trainer::ops::cuda
