#include "trainer/ops/cuda/update_gate.h"

#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/tensor_views.h"

namespace sortie::trainer::ops::cuda {

void CudaBackend::decide_update(Context& context, const UpdateRule& rule, const GateStep& step,
                                const Tensor& loss_sum, const Tensor& squared_norm, Tensor& state,
                                Tensor& gate, Tensor& outcome) {
  decide_update_there(current_stream(context), rule, step,
                      {.loss_sum = address<const double>(loss_sum),
                       .squared_norm = address<const double>(squared_norm),
                       .state = address<double>(state),
                       .gate = address<float>(gate),
                       .outcome = address<double>(outcome)});
}

}  // namespace sortie::trainer::ops::cuda
