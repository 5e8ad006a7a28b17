#include <algorithm>
#include <cmath>
#include <vector>

#include "trainer/ops/attention_cached.h"
#include "trainer/ops/cpu/cpu_backend.h"

namespace sortie::trainer::ops {
namespace {

template <class T>
const T* row_of(const Tensor& x, std::int64_t b, std::int64_t t, std::int64_t h) {
  return x.data<T>() + b * x.stride(0) + t * x.stride(1) + h * x.stride(2);
}

/// One query over the keys [first, last].
template <class T>
void attend(const T* query, const Tensor& k, const Tensor& v, std::int64_t b, std::int64_t head,
            std::int64_t first, std::int64_t last, float scale, std::vector<float>& scores,
            std::vector<float>& sum, T* out) {
  const std::int64_t dims = k.size(3), value_dims = v.size(3);
  scores.resize(static_cast<std::size_t>(last - first + 1));
  float top = -INFINITY;
  for (std::int64_t j = first; j <= last; ++j) {
    const T* key = row_of<T>(k, b, j, head);
    float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
    for (std::int64_t d = 0; d < dims; ++d)
      dot += static_cast<float>(query[d]) * static_cast<float>(key[d]);
    scores[static_cast<std::size_t>(j - first)] = dot * scale;
    top = std::max(top, dot * scale);
  }
  sum.assign(static_cast<std::size_t>(value_dims), 0.0f);
  float total = 0.0f;
  for (std::int64_t j = first; j <= last; ++j) {
    const float weight = std::exp(scores[static_cast<std::size_t>(j - first)] - top);
    total += weight;
    const T* value = row_of<T>(v, b, j, head);
    for (std::int64_t d = 0; d < value_dims; ++d)
      sum[static_cast<std::size_t>(d)] += weight * static_cast<float>(value[d]);
  }
  for (std::int64_t d = 0; d < value_dims; ++d)
    out[d] = static_cast<T>(sum[static_cast<std::size_t>(d)] / total);
}

template <class T>
void run(ExecutionContext& context, const Tensor& q, const Tensor& k, const Tensor& v,
         const AttentionMask& mask, Tensor& out) {
  const std::int64_t heads = q.size(2), group = heads / k.size(2), rows = q.size(1);
  const std::int64_t before =
      mask.place.defined() ? *mask.place.data<std::int32_t>() : k.size(1) - rows;
  parallel_ranges(context, q.size(0) * heads * rows, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> scores, sum;
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t row = task % rows, h = task / rows % heads, b = task / rows / heads;
      const std::int64_t last = std::min(before + row, k.size(1) - 1);
      const std::int64_t first =
          mask.window > 0 ? std::max<std::int64_t>(0, last - mask.window + 1) : 0;
      attend(row_of<T>(q, b, row, h), k, v, b, h / group, first, last, mask.scale, scores, sum,
             const_cast<T*>(row_of<T>(out, b, row, h)));
    }
  });
}

}  // namespace

void CpuBackend::attention_cached(ExecutionContext& context, const Tensor& q, const Tensor& k,
                                  const Tensor& v, const AttentionMask& mask, Tensor& out) {
  if (q.dtype() == DType::bf16)
    run<bf16>(context, q, k, v, mask, out);
  else
    run<float>(context, q, k, v, mask, out);
}

}  // namespace sortie::trainer::ops
