// Row kernels of attention, RoPE and the softmax of the loss. Included by body.h.

template <class T>
float dot(const void* a_v, const void* b_v, std::int64_t n) {
  const T* a = static_cast<const T*>(a_v);
  const T* b = static_cast<const T*>(b_v);
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += load(&a[i]) * load(&b[i]);
  return sum;
}

template <class T>
void rope(void* x_v, const float* cos, const float* sin, std::int64_t half, float sign) {
  T* low = static_cast<T*>(x_v);
  T* high = low + half;
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = load(&low[i]);
    const float b = load(&high[i]);
    const float s = sin[i] * sign;
    store(&low[i], a * cos[i] - b * s);
    store(&high[i], b * cos[i] + a * s);
  }
}

template <class T>
void rope_interleaved(void* x_v, const float* cos, const float* sin, std::int64_t half,
                      float sign) {
  T* x = static_cast<T*>(x_v);
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = load(&x[2 * i]);
    const float b = load(&x[2 * i + 1]);
    const float s = sin[i] * sign;
    store(&x[2 * i], a * cos[i] - b * s);
    store(&x[2 * i + 1], b * cos[i] + a * s);
  }
}

/// The largest element. NaN is ignored here; its exponential puts it back into the sum.
SORTIE_INLINE float row_max(const float* x, std::int64_t n) {
  float max = -__builtin_inff();
#pragma omp simd reduction(max : max)
  for (std::int64_t i = 0; i < n; ++i) max = x[i] > max ? x[i] : max;
  return max;
}

template <class T>
float softmax(float* s, void* p_v, std::int64_t n, std::int64_t width, float factor) {
  T* p = static_cast<T*>(p_v);
  const float shift = row_max(s, n) * factor;
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) {
    s[i] = exp_clamped(s[i] * factor - shift);
    sum += s[i];
  }
  const float reciprocal = 1.0f / sum;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) store(&p[i], s[i] * reciprocal);
#pragma omp simd
  for (std::int64_t i = n; i < width; ++i) store(&p[i], 0.0f);
  return shift + __builtin_logf(sum);
}

template <class T>
float softmax_part(const float* s, void* p_v, std::int64_t n, std::int64_t width, float factor,
                   float* max, float* sum) {
  T* p = static_cast<T*>(p_v);
  const float here = row_max(s, n) * factor;
  const float shift = here > *max ? here : *max;
  float total = 0.0f;
#pragma omp simd reduction(+ : total)
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = exp_clamped(s[i] * factor - shift);
    store(&p[i], value);
    total += value;
  }
#pragma omp simd
  for (std::int64_t i = n; i < width; ++i) store(&p[i], 0.0f);
  const float keep = exp_clamped(*max - shift);
  *sum = *sum * keep + total;
  *max = shift;
  return keep;
}

template <class T>
void softmax_backward(const float* s, const float* dp, void* p_v, void* ds_v, std::int64_t n,
                      std::int64_t width, float factor, float lse, float delta) {
  T* p = static_cast<T*>(p_v);
  T* ds = static_cast<T*>(ds_v);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float probability = exp_clamped(s[i] * factor - lse);
    store(&p[i], probability);
    store(&ds[i], probability * (dp[i] - delta) * factor);
  }
#pragma omp simd
  for (std::int64_t i = n; i < width; ++i) {
    store(&p[i], 0.0f);
    store(&ds[i], 0.0f);
  }
}

template <class T>
float exp_row(const float* logits, void* e_v, std::int64_t n, float* max) {
  T* e = static_cast<T*>(e_v);
  const float shift = row_max(logits, n);
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = exp_clamped(logits[i] - shift);
    store(&e[i], value);
    sum += value;
  }
  *max = shift;
  return sum;
}
