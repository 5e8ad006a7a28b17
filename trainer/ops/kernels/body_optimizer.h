// Kernels over flat ranges. Included by body.h.

SORTIE_INLINE float adamw_element(const AdamWRow& a, float* w, float grad, float* m, float* v) {
  const float g = grad * a.grad_scale;
  const float first = a.beta1 * *m + a.rest1 * g;
  const float second = a.beta2 * *v + a.rest2 * (g * g);
  const float deviation = __builtin_sqrtf(second) * a.root_correction2 + a.eps;
  const float old = *w;
  const float updated = old - (a.step_size * (first / deviation) + a.decay * old);
  *m = first;
  *v = second;
  *w = updated;
  return updated;
}

void adamw(const AdamWRow& step, float* w, const float* grad, float* m, float* v,
           std::uint16_t* compute, std::int64_t n) {
  const AdamWRow a = step;
  if (compute == nullptr) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) adamw_element(a, &w[i], grad[i], &m[i], &v[i]);
    return;
  }
  b16* narrow = reinterpret_cast<b16*>(compute);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i)
    store(&narrow[i], adamw_element(a, &w[i], grad[i], &m[i], &v[i]));
}

/// Rounds up or down at random, by 16 uniform random bits: the mean is the value.
SORTIE_INLINE void round_at_random(b16* p, float value, std::uint32_t noise) {
  const std::uint32_t wide = as_bits(value), size = wide & 0x7fffffffu;
  const std::uint32_t kept = (wide >> 16) | (size > 0x7f800000u ? 0x40u : 0u);
  p->bits = static_cast<std::uint16_t>(size < 0x7f800000u ? (wide + noise) >> 16 : kept);
}

SORTIE_INLINE float adamw_rounded_element(const AdamWRow& a, const RoundingRow& r, std::int64_t i,
                                          float* w, float grad, b16* m, b16* v) {
  const std::uint32_t number = r.begin + static_cast<std::uint32_t>(i);
  const std::uint32_t bits = mix_bits(mix_bits(number + r.key0) ^ r.key1);
  float first = load(m), second = load(v);
  const float updated = adamw_element(a, w, grad, &first, &second);
  round_at_random(m, first, bits & 0xffffu);
  round_at_random(v, second, bits >> 16);
  return updated;
}

void adamw_rounded(const AdamWRow& step, const RoundingRow& rounding, float* w, const float* grad,
                   std::uint16_t* m_v, std::uint16_t* v_v, std::uint16_t* compute, std::int64_t n) {
  const AdamWRow a = step;
  const RoundingRow r = rounding;
  b16 *m = reinterpret_cast<b16*>(m_v), *v = reinterpret_cast<b16*>(v_v);
  if (compute == nullptr) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i)
      adamw_rounded_element(a, r, i, &w[i], grad[i], &m[i], &v[i]);
    return;
  }
  b16* narrow = reinterpret_cast<b16*>(compute);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i)
    store(&narrow[i], adamw_rounded_element(a, r, i, &w[i], grad[i], &m[i], &v[i]));
}

double sum_of_squares(const float* x, std::int64_t n) {
  double sum = 0.0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) {
    const double wide = static_cast<double>(x[i]);
    sum += wide * wide;
  }
  return sum;
}
