// Not there yet.
#include "trainer/ops/cuda/cuda_backend.h"

namespace sortie::trainer::ops::cuda {

void CudaBackend::sort_by_expert(Context&, const Tensor&, ExpertRows&) {
  SORTIE_CHECK(false, "sort_by_expert is not there yet");
}

void CudaBackend::dispatch_forward(Context&, const ExpertRows&, const Tensor&, Tensor&) {
  SORTIE_CHECK(false, "dispatch_forward is not there yet");
}

void CudaBackend::dispatch_backward(Context&, const ExpertRows&, const Tensor&, Tensor&) {
  SORTIE_CHECK(false, "dispatch_backward is not there yet");
}

void CudaBackend::combine_forward(Context&, const ExpertRows&, const Tensor&, const Tensor&, Tensor&) {
  SORTIE_CHECK(false, "combine_forward is not there yet");
}

void CudaBackend::combine_backward(Context&, const ExpertRows&, const Tensor&, const Tensor&, const Tensor&, Tensor&, Tensor&) {
  SORTIE_CHECK(false, "combine_backward is not there yet");
}

void CudaBackend::grouped_linear_forward(Context&, const ExpertRows&, const Tensor&, std::span<const PackedWeight* const>, Tensor&) {
  SORTIE_CHECK(false, "grouped_linear_forward is not there yet");
}

void CudaBackend::grouped_linear_backward_data(Context&, const ExpertRows&, const Tensor&, std::span<const PackedWeight* const>, Tensor&) {
  SORTIE_CHECK(false, "grouped_linear_backward_data is not there yet");
}

void CudaBackend::grouped_linear_backward_weight(Context&, const ExpertRows&, const Tensor&, const Tensor&, std::span<Tensor>) {
  SORTIE_CHECK(false, "grouped_linear_backward_weight is not there yet");
}

}  // namespace sortie::trainer::ops::cuda
