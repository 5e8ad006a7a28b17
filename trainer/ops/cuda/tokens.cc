// Not there yet.
#include "trainer/ops/cuda/cuda_backend.h"

namespace sortie::trainer::ops::cuda {

void CudaBackend::embedding_forward(Context&, const Tensor&, const Tensor&, const TablePart&, Tensor&) {
  SORTIE_CHECK(false, "embedding_forward is not there yet");
}

void CudaBackend::embedding_backward(Context&, const Tensor&, const Tensor&, const TablePart&, Tensor&) {
  SORTIE_CHECK(false, "embedding_backward is not there yet");
}

void CudaBackend::count_positions(Context&, std::int64_t, Tensor&) {
  SORTIE_CHECK(false, "count_positions is not there yet");
}

void CudaBackend::find_documents(Context&, const Tensor&, std::int32_t, Tensor&, Tensor&) {
  SORTIE_CHECK(false, "find_documents is not there yet");
}

void CudaBackend::shift_tokens(Context&, const Tensor&, const Tensor&, std::int64_t, std::int32_t, Tensor&) {
  SORTIE_CHECK(false, "shift_tokens is not there yet");
}

}  // namespace sortie::trainer::ops::cuda
