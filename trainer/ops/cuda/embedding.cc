#include "trainer/ops/cuda/embedding.h"

#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/tensor_views.h"

namespace sortie::trainer::ops::cuda {
namespace {

TableTokens tokens_of(const Tensor& tokens, const TablePart& part) {
  return {address<const std::int32_t>(tokens), tokens.elements(), part.first};
}

}  // namespace

void CudaBackend::embedding_forward(Context& context, const Tensor& tokens, const Tensor& table,
                                    const TablePart& part, Tensor& y) {
  with_float_type(y.dtype(), [&]<class T> {
    gather_rows(current_stream(context), tokens_of(tokens, part), rows_of<const T>(table),
                rows_of<T>(y));
  });
}

void CudaBackend::embedding_backward(Context& context, const Tensor& tokens, const Tensor& dy,
                                     const TablePart& part, Tensor& dtable) {
  const std::int64_t count = tokens.elements();
  if (count == 0) return;
  const cudaStream_t stream = current_stream(context);
  const Tensor keys = context.empty(DType::i64, {2, count});
  auto* first = address<std::int64_t>(keys);
  const std::int64_t* sorted =
      sort_tokens(stream, tokens_of(tokens, part), dtable.size(0), first, first + count);
  with_float_type(dy.dtype(), [&]<class T> {
    add_rows_by_key(stream, sorted, rows_of<const T>(dy), rows_of<float>(dtable));
  });
}

}  // namespace sortie::trainer::ops::cuda
