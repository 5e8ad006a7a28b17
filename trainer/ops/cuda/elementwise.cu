#include "trainer/ops/cuda/elementwise.h"

#include "trainer/ops/cuda/rows.h"

namespace sortie::trainer::ops::cuda {
namespace {

template <class T>
Rows<T> one_row(Flat<T> x) {
  return {x.data, 1, x.size, x.size};
}

template <class T>
struct Fill {
  T value;
  T* x;

  template <int N>
  __device__ void at(std::int64_t, std::int64_t col) const {
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) pack.values[i] = value;
    write_pack(x + col, pack);
  }
};

template <class T>
struct Add {
  Rows<const T> a, b;
  Rows<T> y;

  template <int N>
  __device__ void at(std::int64_t row, std::int64_t col) const {
    Floats<N> sum = load<N>(a, row, col);
    const Floats<N> other = load<N>(b, row, col);
#pragma unroll
    for (int i = 0; i < N; ++i) sum.values[i] += other.values[i];
    store<N>(y, row, col, sum);
  }
};

template <class T>
struct Scale {
  const T* x;
  float factor;
  T* y;

  template <int N>
  __device__ void at(std::int64_t, std::int64_t col) const {
    Floats<N> values = load<N>(x + col);
#pragma unroll
    for (int i = 0; i < N; ++i) values.values[i] *= factor;
    store<N>(y + col, values);
  }
};

template <class From, class To>
struct Convert {
  const From* from;
  To* to;

  template <int N>
  __device__ void at(std::int64_t, std::int64_t col) const {
    store<N>(to + col, load<N>(from + col));
  }
};

struct Accumulate {
  const double* from;
  double* sums;

  template <int N>
  __device__ void at(std::int64_t, std::int64_t col) const {
    sums[col] += from[col];
  }
};

}  // namespace

template <class T>
void fill_values(cudaStream_t stream, T value, Flat<T> x) {
  const Rows<T> row = one_row(x);
  for_each_element<T>(stream, {1, x.size}, Fill<T>{value, x.data}, row);
}
template void fill_values(cudaStream_t, float, Flat<float>);
template void fill_values(cudaStream_t, bf16, Flat<bf16>);
template void fill_values(cudaStream_t, double, Flat<double>);
template void fill_values(cudaStream_t, std::int32_t, Flat<std::int32_t>);
template void fill_values(cudaStream_t, std::int64_t, Flat<std::int64_t>);
template void fill_values(cudaStream_t, std::uint8_t, Flat<std::uint8_t>);

template <class T>
void add_rows(cudaStream_t stream, Rows<const T> a, Rows<const T> b, Rows<T> y) {
  join_rows(a, b, y);
  for_each_element<T>(stream, {y.rows, y.cols}, Add<T>{a, b, y}, a, b, y);
}
template void add_rows(cudaStream_t, Rows<const float>, Rows<const float>, Rows<float>);
template void add_rows(cudaStream_t, Rows<const bf16>, Rows<const bf16>, Rows<bf16>);

template <class T>
void scale_values(cudaStream_t stream, Flat<const T> x, float factor, Flat<T> y) {
  for_each_element<T>(stream, {1, y.size}, Scale<T>{x.data, factor, y.data}, one_row(x),
                      one_row(y));
}
template void scale_values(cudaStream_t, Flat<const float>, float, Flat<float>);
template void scale_values(cudaStream_t, Flat<const bf16>, float, Flat<bf16>);

template <class From, class To>
void convert_values(cudaStream_t stream, Flat<const From> from, Flat<To> to) {
  for_each_element<bf16>(stream, {1, to.size}, Convert<From, To>{from.data, to.data},
                         one_row(from), one_row(to));
}
template void convert_values(cudaStream_t, Flat<const float>, Flat<bf16>);
template void convert_values(cudaStream_t, Flat<const bf16>, Flat<float>);

void accumulate_values(cudaStream_t stream, Flat<const double> from, Flat<double> sums) {
  for_each_pack<1>(stream, {1, sums.size}, Accumulate{from.data, sums.data});
}

}  // namespace sortie::trainer::ops::cuda
