// The same arithmetic as on the CPU (kernels/body_elementwise.h), with CUDA's exponential. NaN
// fails every comparison and so is kept; fminf and fmaxf would lose it.
#include "trainer/ops/cuda/activations.h"

#include "trainer/ops/cuda/rows.h"

namespace sortie::trainer::ops::cuda {
namespace {

/// e^x for results that are rounded to T. For bf16 this is exp_fast(), whose error is far below the
/// rounding.
template <class T>
__device__ __forceinline__ float exponential(float x) {
  if constexpr (sizeof(T) < sizeof(float))
    return exp_fast(x);
  else
    return expf(x);
}
template <class T>
__device__ __forceinline__ float sigmoid(float x) {
  return reciprocal_fast(1.0f + exponential<T>(-x));
}

template <class T>
struct SwiGlu {
  GatedRows<const T> in;
  Rows<T> y;

  template <int N>
  __device__ void at(std::int64_t row, std::int64_t col) const {
    const Floats<N> gate = load<N>(in.gate, row, col);
    Floats<N> values = load<N>(in.up, row, col);
#pragma unroll
    for (int i = 0; i < N; ++i) values.values[i] *= gate.values[i] * sigmoid<T>(gate.values[i]);
    store<N>(y, row, col, values);
  }
};

/// d silu(g) / dg = s + g s (1 - s), s = sigmoid(g).
template <class T>
struct SwiGluBackward {
  Rows<const T> dy;
  GatedRows<const T> in;
  GatedRows<T> out;

  template <int N>
  __device__ void at(std::int64_t row, std::int64_t col) const {
    const Floats<N> d = load<N>(dy, row, col);
    Floats<N> gate = load<N>(in.gate, row, col), up = load<N>(in.up, row, col);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = gate.values[i], s = sigmoid<T>(g), silu = g * s;
      gate.values[i] = d.values[i] * up.values[i] * (s + silu * (1.0f - s));
      up.values[i] = d.values[i] * silu;
    }
    store<N>(out.gate, row, col, gate);
    store<N>(out.up, row, col, up);
  }
};

/// P(X <= x) for a standard normal X, given half_square_exp = e^(-x^2 / 2). The upper tail is
/// half_square_exp * t * P(t) / 2 with t = 1 / (1 + 0.4 |x| / sqrt 2), P as in kernels/body_math.h.
/// This takes a third of normcdff()'s instructions and is as accurate as the rounding of x^2
/// allows.
__device__ __forceinline__ float normal_cdf(float x, float half_square_exp) {
  const float t = reciprocal_fast(1.0f + 0.282842712f * fabsf(x));
  const float u = t * 2.52631579f - 1.52631579f;
  float p = -8.188328443e-06f;
  p = p * u + 2.218426286e-05f;
  p = p * u + 0.0001080903903f;
  p = p * u - 0.0003325894986f;
  p = p * u - 0.001701408307f;
  p = p * u + 0.002624147190f;
  p = p * u + 0.03779095179f;
  p = p * u + 0.1422546914f;
  p = p * u + 0.3220553248f;
  p = p * u + 0.4971867974f;
  const float tail = 0.5f * half_square_exp * t * p;
  return x < 0.0f ? tail : 1.0f - tail;
}

template <class T>
struct ExactGelu {
  static __device__ __forceinline__ float value(float x) {
    return x * normal_cdf(x, exponential<T>(-0.5f * x * x));
  }
  /// cdf(x) + x pdf(x).
  static __device__ __forceinline__ float slope(float x) {
    const float half_square_exp = exponential<T>(-0.5f * x * x);
    return normal_cdf(x, half_square_exp) + x * half_square_exp * 0.398942280f;
  }
};

/// 0.5 (1 + tanh u) = sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). Beyond +-30 the sigmoid is
/// 0 or 1, so x is clamped.
template <class T>
struct TanhGelu {
  static constexpr float kLimit = 30.0f, kTwice = 1.59576912f;
  static __device__ __forceinline__ float share(float y) {
    return sigmoid<T>(y * (kTwice + 0.044715f * kTwice * (y * y)));
  }
  static __device__ __forceinline__ float value(float x) { return x * share(limited(x, kLimit)); }
  /// s + x s (1 - s) d(2u)/dx.
  static __device__ __forceinline__ float slope(float x) {
    const float y = limited(x, kLimit), s = share(y);
    return s + y * (s - s * s) * (kTwice + 0.134145f * kTwice * (y * y));
  }
};

template <class Kind, class T>
struct Gelu {
  Rows<const T> x;
  Rows<T> y;

  template <int N>
  __device__ void at(std::int64_t row, std::int64_t col) const {
    Floats<N> values = load<N>(x, row, col);
#pragma unroll
    for (int i = 0; i < N; ++i) values.values[i] = Kind::value(values.values[i]);
    store<N>(y, row, col, values);
  }
};

template <class Kind, class T>
struct GeluBackward {
  Rows<const T> dy, x;
  Rows<T> dx;

  template <int N>
  __device__ void at(std::int64_t row, std::int64_t col) const {
    const Floats<N> d = load<N>(dy, row, col);
    Floats<N> values = load<N>(x, row, col);
#pragma unroll
    for (int i = 0; i < N; ++i) values.values[i] = d.values[i] * Kind::slope(values.values[i]);
    store<N>(dx, row, col, values);
  }
};

template <class Kind, class T>
void gelu_of(cudaStream_t stream, Rows<const T> x, Rows<T> y) {
  for_each_element<T>(stream, {y.rows, y.cols}, Gelu<Kind, T>{x, y}, x, y);
}
template <class Kind, class T>
void gelu_backward_of(cudaStream_t stream, Rows<const T> dy, Rows<const T> x, Rows<T> dx) {
  for_each_element<T>(stream, {dx.rows, dx.cols}, GeluBackward<Kind, T>{dy, x, dx}, dy, x, dx);
}

}  // namespace

template <class T>
void swiglu_rows(cudaStream_t stream, const GatedRows<const T>& in, const std::int64_t* counted,
                 Rows<T> y) {
  for_each_element<T>(stream, {y.rows, y.cols, counted}, SwiGlu<T>{in, y}, in.gate, in.up, y);
}
template <class T>
void swiglu_backward_rows(cudaStream_t stream, Rows<const T> dy, const GatedRows<const T>& in,
                          const std::int64_t* counted, const GatedRows<T>& out) {
  for_each_element<T>(stream, {dy.rows, dy.cols, counted}, SwiGluBackward<T>{dy, in, out}, dy,
                      in.gate, in.up, out.gate, out.up);
}
template <class T>
void gelu_rows(cudaStream_t stream, bool tanh_form, Rows<const T> x, Rows<T> y) {
  join_rows(x, y);
  tanh_form ? gelu_of<TanhGelu<T>>(stream, x, y) : gelu_of<ExactGelu<T>>(stream, x, y);
}
template <class T>
void gelu_backward_rows(cudaStream_t stream, bool tanh_form, Rows<const T> dy, Rows<const T> x,
                        Rows<T> dx) {
  join_rows(dy, x, dx);
  tanh_form ? gelu_backward_of<TanhGelu<T>>(stream, dy, x, dx)
            : gelu_backward_of<ExactGelu<T>>(stream, dy, x, dx);
}

template void swiglu_rows(cudaStream_t, const GatedRows<const float>&, const std::int64_t*,
                          Rows<float>);
template void swiglu_rows(cudaStream_t, const GatedRows<const bf16>&, const std::int64_t*,
                          Rows<bf16>);
template void swiglu_backward_rows(cudaStream_t, Rows<const float>, const GatedRows<const float>&,
                                   const std::int64_t*, const GatedRows<float>&);
template void swiglu_backward_rows(cudaStream_t, Rows<const bf16>, const GatedRows<const bf16>&,
                                   const std::int64_t*, const GatedRows<bf16>&);
template void gelu_rows(cudaStream_t, bool, Rows<const float>, Rows<float>);
template void gelu_rows(cudaStream_t, bool, Rows<const bf16>, Rows<bf16>);
template void gelu_backward_rows(cudaStream_t, bool, Rows<const float>, Rows<const float>,
                                 Rows<float>);
template void gelu_backward_rows(cudaStream_t, bool, Rows<const bf16>, Rows<const bf16>,
                                 Rows<bf16>);

}  // namespace sortie::trainer::ops::cuda
