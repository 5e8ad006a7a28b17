#include "trainer/ops/cuda/elementwise.h"

#include "trainer/ops/cuda/device.h"
#include "trainer/ops/cuda/launch.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void fill_kernel(T value, Flat<T> x) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < x.size) x.data[i] = value;
}

/// A block per row and kThreads columns.
template <class T>
__global__ void add_kernel(Rows<const T> a, Rows<const T> b, Rows<T> y) {
  const std::int64_t col = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t row = blockIdx.y;
  if (col >= y.cols) return;
  y.data[row * y.stride + col] = from_float<T>(to_float(a.data[row * a.stride + col]) +
                                               to_float(b.data[row * b.stride + col]));
}

}  // namespace

template <class T>
void fill_values(cudaStream_t stream, T value, Flat<T> x) {
  launch(fill_kernel<T>, {.blocks = blocks_for(x.size, kThreads), .threads = kThreads}, stream,
         value, x);
}
template void fill_values(cudaStream_t, float, Flat<float>);
template void fill_values(cudaStream_t, bf16, Flat<bf16>);
template void fill_values(cudaStream_t, double, Flat<double>);
template void fill_values(cudaStream_t, std::int32_t, Flat<std::int32_t>);
template void fill_values(cudaStream_t, std::int64_t, Flat<std::int64_t>);
template void fill_values(cudaStream_t, std::uint8_t, Flat<std::uint8_t>);

template <class T>
void add_rows(cudaStream_t stream, Rows<const T> a, Rows<const T> b, Rows<T> y) {
  launch(add_kernel<T>,
         {.blocks = {blocks_for(y.cols, kThreads), static_cast<unsigned>(y.rows)},
          .threads = kThreads},
         stream, a, b, y);
}
template void add_rows(cudaStream_t, Rows<const float>, Rows<const float>, Rows<float>);
template void add_rows(cudaStream_t, Rows<const bf16>, Rows<const bf16>, Rows<bf16>);

}  // namespace sortie::trainer::ops::cuda
