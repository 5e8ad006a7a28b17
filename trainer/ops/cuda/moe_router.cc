// Not there yet.
#include "trainer/ops/cuda/cuda_backend.h"

namespace sortie::trainer::ops::cuda {

void CudaBackend::route_forward(Context&, const RouterSpec&, const Tensor&, const Tensor&, const Tensor&, Tensor&, Tensor&, Tensor&) {
  SORTIE_CHECK(false, "route_forward is not there yet");
}

void CudaBackend::route_backward(Context&, const RouterSpec&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, Tensor&) {
  SORTIE_CHECK(false, "route_backward is not there yet");
}

void CudaBackend::count_choices(Context&, const Tensor&, Tensor&) {
  SORTIE_CHECK(false, "count_choices is not there yet");
}

void CudaBackend::count_top_experts(Context&, const Tensor&, std::int64_t, Tensor&) {
  SORTIE_CHECK(false, "count_top_experts is not there yet");
}

void CudaBackend::sequence_balance(Context&, const Tensor&, const Tensor&, std::int64_t, double, Tensor&) {
  SORTIE_CHECK(false, "sequence_balance is not there yet");
}

void CudaBackend::sequence_balance_backward(Context&, const Tensor&, const Tensor&, std::int64_t, float, Tensor&) {
  SORTIE_CHECK(false, "sequence_balance_backward is not there yet");
}

void CudaBackend::column_sums(Context&, const Tensor&, Tensor&) {
  SORTIE_CHECK(false, "column_sums is not there yet");
}

void CudaBackend::load_balance(Context&, const Tensor&, const Tensor&, double, double, Tensor&) {
  SORTIE_CHECK(false, "load_balance is not there yet");
}

void CudaBackend::load_balance_backward(Context&, const Tensor&, double, float, Tensor&) {
  SORTIE_CHECK(false, "load_balance_backward is not there yet");
}

void CudaBackend::update_router_bias(Context&, const Tensor&, float, Tensor&) {
  SORTIE_CHECK(false, "update_router_bias is not there yet");
}

}  // namespace sortie::trainer::ops::cuda
