// Row kernels of activations and conversions. Included by body.h.

SORTIE_INLINE float sigmoid(float x) {
  return 1.0f / (1.0f + exp_clamped(-x));
}

template <class T>
void swiglu_forward(const void* gate_v, const void* up_v, void* y_v, std::int64_t n) {
  const T* gate = static_cast<const T*>(gate_v);
  const T* up = static_cast<const T*>(up_v);
  T* y = static_cast<T*>(y_v);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = load(&gate[i]);
    store(&y[i], g * sigmoid(g) * load(&up[i]));
  }
}

/// d silu(g) / dg = s + g s (1 - s), s = sigmoid(g).
template <class T>
void swiglu_backward(const void* dy_v, const void* gate_v, const void* up_v, void* dgate_v,
                     void* dup_v, std::int64_t n) {
  const T* dy = static_cast<const T*>(dy_v);
  const T* gate = static_cast<const T*>(gate_v);
  const T* up = static_cast<const T*>(up_v);
  T* dgate = static_cast<T*>(dgate_v);
  T* dup = static_cast<T*>(dup_v);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = load(&gate[i]);
    const float d = load(&dy[i]);
    const float u = load(&up[i]);
    const float s = sigmoid(g);
    const float silu = g * s;
    store(&dgate[i], d * u * (s + silu * (1.0f - s)));
    store(&dup[i], d * silu);
  }
}

/// P(X <= x) for a standard normal X.
SORTIE_INLINE float normal_cdf(float x, float half_square_exp) {
  const float tail = normal_tail(x < 0.0f ? -x : x, half_square_exp);
  return x < 0.0f ? tail : 1.0f - tail;
}

template <class T>
void gelu_forward(const void* x_v, void* y_v, std::int64_t n) {
  const T* x = static_cast<const T*>(x_v);
  T* y = static_cast<T*>(y_v);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = load(&x[i]);
    store(&y[i], value * normal_cdf(value, exp_clamped(-0.5f * value * value)));
  }
}

/// d gelu / dx = cdf(x) + x pdf(x).
template <class T>
void gelu_backward(const void* dy_v, const void* x_v, void* dx_v, std::int64_t n) {
  const T* dy = static_cast<const T*>(dy_v);
  const T* x = static_cast<const T*>(x_v);
  T* dx = static_cast<T*>(dx_v);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = load(&x[i]);
    const float half_square_exp = exp_clamped(-0.5f * value * value);
    const float slope = normal_cdf(value, half_square_exp) + value * half_square_exp * 0.398942280f;
    store(&dx[i], load(&dy[i]) * slope);
  }
}

/// 2 u of GELU's tanh form: 0.5 (1 + tanh u) = sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
/// Beyond +-30 the sigmoid is 0 or 1, so x is clamped.
SORTIE_INLINE float gelu_new_argument(float x) {
  const float low = x < -30.0f ? -30.0f : x;
  const float y = low > 30.0f ? 30.0f : low;
  return 1.59576912f * (y + 0.044715f * y * y * y);
}

template <class T>
void gelu_new_forward(const void* x_v, void* y_v, std::int64_t n) {
  const T* x = static_cast<const T*>(x_v);
  T* y = static_cast<T*>(y_v);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = load(&x[i]);
    store(&y[i], value * sigmoid(gelu_new_argument(value)));
  }
}

/// d(x s(2u)) / dx = s + x s (1 - s) d(2u)/dx.
template <class T>
void gelu_new_backward(const void* dy_v, const void* x_v, void* dx_v, std::int64_t n) {
  const T* dy = static_cast<const T*>(dy_v);
  const T* x = static_cast<const T*>(x_v);
  T* dx = static_cast<T*>(dx_v);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = load(&x[i]);
    const float low = value < -30.0f ? -30.0f : value;
    const float y = low > 30.0f ? 30.0f : low;
    const float s = sigmoid(gelu_new_argument(value));
    const float slope = s + y * s * (1.0f - s) * 1.59576912f * (1.0f + 0.134145f * y * y);
    store(&dx[i], load(&dy[i]) * slope);
  }
}

template <class T>
void add(const void* a_v, const void* b_v, void* y_v, std::int64_t n) {
  const T* a = static_cast<const T*>(a_v);
  const T* b = static_cast<const T*>(b_v);
  T* y = static_cast<T*>(y_v);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) store(&y[i], load(&a[i]) + load(&b[i]));
}

template <class T>
void add_to_f32(float* sum, const void* x_v, std::int64_t n) {
  const T* x = static_cast<const T*>(x_v);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) sum[i] += load(&x[i]);
}

template <class T>
void add_scaled_to_f32(float* sum, const void* x_v, std::int64_t n, float factor) {
  const T* x = static_cast<const T*>(x_v);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) sum[i] += factor * load(&x[i]);
}

template <class T>
void from_f32(const float* x, void* y_v, std::int64_t n) {
  T* y = static_cast<T*>(y_v);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) store(&y[i], x[i]);
}

template <class T>
void to_f32(const void* x_v, float* y, std::int64_t n) {
  const T* x = static_cast<const T*>(x_v);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = load(&x[i]);
}

template <class T>
void scale(void* x_v, std::int64_t n, float factor) {
  T* x = static_cast<T*>(x_v);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) store(&x[i], load(&x[i]) * factor);
}

/// A bijection of 32 bits in which every bit of x changes every bit of the result (Wellons 2018).
SORTIE_INLINE std::uint32_t mix_bits(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x;
}

/// y = x * scale if the element's random bits are at least the threshold, else 0 (also for NaN).
template <class T>
void dropout(const DropoutRow& row, const void* x_v, void* y_v, std::int64_t n) {
  const T* x = static_cast<const T*>(x_v);
  T* y = static_cast<T*>(y_v);
  const DropoutRow r = row;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t number = r.begin + static_cast<std::uint32_t>(i);
    const std::uint32_t bits = mix_bits(mix_bits(number + r.key0) ^ r.key1);
    const float value = load(&x[i]) * r.scale;
    store(&y[i], bits >= r.threshold ? value : 0.0f);
  }
}
