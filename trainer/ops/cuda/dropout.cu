#include "trainer/ops/cuda/dropout.h"

#include "trainer/ops/cuda/dropout_run.h"
#include "trainer/ops/cuda/rows.h"

namespace sortie::trainer::ops::cuda {
namespace {

template <class T>
struct Drop {
  DropoutView dropout;
  Rows<const T> x;
  Rows<T> y;

  template <int N>
  __device__ void at(std::int64_t row, std::int64_t col) const {
    DropoutRun run(dropout, row);
    Floats<N> values = load<N>(x, row, col);
#pragma unroll
    for (int i = 0; i < N; ++i) values.values[i] = run(col + i, values.values[i]);
    store<N>(y, row, col, values);
  }
};

}  // namespace

template <class T>
void drop_elements(cudaStream_t stream, const DropoutView& dropout, Rows<const T> x, Rows<T> y) {
  for_each_element<T>(stream, {y.rows, y.cols}, Drop<T>{dropout, x, y}, x, y);
}
template void drop_elements(cudaStream_t, const DropoutView&, Rows<const float>, Rows<float>);
template void drop_elements(cudaStream_t, const DropoutView&, Rows<const bf16>, Rows<bf16>);

}  // namespace sortie::trainer::ops::cuda
