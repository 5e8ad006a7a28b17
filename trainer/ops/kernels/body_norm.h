// Row kernels of the norms. Included by body.h.

template <class T>
void norm_forward(const NormForwardRows& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t cols = a.cols;
  const float scale = 1.0f / static_cast<float>(cols);
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(a.residual) + row * a.residual_stride;
    float sum = 0.0f;
    if (a.branch != nullptr) {
      const T* branch = static_cast<const T*>(a.branch) + row * a.branch_stride;
      T* out = static_cast<T*>(a.residual_out) + row * a.residual_out_stride;
#pragma omp simd
      for (std::int64_t i = 0; i < cols; ++i) store(&out[i], load(&x[i]) + load(&branch[i]));
      x = out;
    }
    float mean = 0.0f;
    float squares = 0.0f;
    if (a.layer) {
#pragma omp simd reduction(+ : sum)
      for (std::int64_t i = 0; i < cols; ++i) sum += load(&x[i]);
      mean = sum * scale;
    }
#pragma omp simd reduction(+ : squares)
    for (std::int64_t i = 0; i < cols; ++i) {
      const float centred = load(&x[i]) - mean;
      squares += centred * centred;
    }
    const float reciprocal = 1.0f / __builtin_sqrtf(squares * scale + a.eps);
    a.stats[2 * row] = mean;
    a.stats[2 * row + 1] = reciprocal;
    T* y = static_cast<T*>(a.y) + row * a.y_stride;
    const float* weight = a.weight;
    if (a.bias != nullptr) {
      const float* bias = a.bias;
#pragma omp simd
      for (std::int64_t i = 0; i < cols; ++i)
        store(&y[i], (load(&x[i]) - mean) * reciprocal * weight[i] + bias[i]);
    } else {
#pragma omp simd
      for (std::int64_t i = 0; i < cols; ++i)
        store(&y[i], (load(&x[i]) - mean) * reciprocal * weight[i]);
    }
  }
}

/// With g = dy * weight and z = (x - mean) * r:
///   dx = dresidual + r * (g - mean(g) [layer only] - z * mean(g z)).
template <class T>
void norm_backward(const NormBackwardRows& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t cols = a.cols;
  const float scale = 1.0f / static_cast<float>(cols);
  const float* weight = a.weight;
  for (std::int64_t row = begin; row < end; ++row) {
    const T* dy = static_cast<const T*>(a.dy) + row * a.dy_stride;
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    T* dx = static_cast<T*>(a.dx) + row * a.dx_stride;
    const float mean = a.stats[2 * row];
    const float reciprocal = a.stats[2 * row + 1];
    float* dweight = a.dweight;
    float sum_g = 0.0f;
    float sum_gz = 0.0f;
#pragma omp simd reduction(+ : sum_g, sum_gz)
    for (std::int64_t i = 0; i < cols; ++i) {
      const float d = load(&dy[i]);
      const float g = d * weight[i];
      const float z = (load(&x[i]) - mean) * reciprocal;
      sum_g += g;
      sum_gz += g * z;
      dweight[i] += d * z;
    }
    if (a.dbias != nullptr) {
      float* dbias = a.dbias;
#pragma omp simd
      for (std::int64_t i = 0; i < cols; ++i) dbias[i] += load(&dy[i]);
    }
    const float mean_g = a.layer ? sum_g * scale : 0.0f;
    const float mean_gz = sum_gz * scale;
    if (a.dresidual != nullptr) {
      const T* dresidual = static_cast<const T*>(a.dresidual) + row * a.dresidual_stride;
#pragma omp simd
      for (std::int64_t i = 0; i < cols; ++i) {
        const float z = (load(&x[i]) - mean) * reciprocal;
        store(&dx[i],
              load(&dresidual[i]) + reciprocal * (load(&dy[i]) * weight[i] - mean_g - z * mean_gz));
      }
    } else {
#pragma omp simd
      for (std::int64_t i = 0; i < cols; ++i) {
        const float z = (load(&x[i]) - mean) * reciprocal;
        store(&dx[i], reciprocal * (load(&dy[i]) * weight[i] - mean_g - z * mean_gz));
      }
    }
  }
}
