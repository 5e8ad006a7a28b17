// Kernels over flat f32 ranges. Included by body.h.

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

double sum_of_squares(const float* x, std::int64_t n) {
  double sum = 0.0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) {
    const double wide = static_cast<double>(x[i]);
    sum += wide * wide;
  }
  return sum;
}
