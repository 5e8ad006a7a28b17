#include "trainer/ops/cuda/tokens.h"

#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/tensor_views.h"

namespace sortie::trainer::ops::cuda {

void CudaBackend::count_positions(Context& context, std::int64_t first, Tensor& positions) {
  count_rows(current_stream(context), static_cast<std::int32_t>(first),
             rows_of<std::int32_t>(positions));
}

void CudaBackend::find_documents(Context& context, const Tensor& tokens, std::int32_t end,
                                 const Tensor& targets, Tensor& starts, Tensor& positions) {
  find_starts(current_stream(context), rows_of<const std::int32_t>(tokens), end,
              address<const std::int32_t>(targets), address<std::int32_t>(starts),
              address<std::int32_t>(positions));
}

void CudaBackend::shift_tokens(Context& context, const Tensor& tokens, const Tensor& starts,
                               std::int64_t distance, std::int32_t missing, Tensor& shifted) {
  shift_rows(current_stream(context), rows_of<const std::int32_t>(tokens),
             address<const std::int32_t>(starts), distance, missing,
             address<std::int32_t>(shifted));
}

}  // namespace sortie::trainer::ops::cuda
