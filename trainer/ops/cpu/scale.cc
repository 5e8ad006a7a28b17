#include "trainer/ops/scale.h"
#include "trainer/ops/cpu/cpu_backend.h"

namespace sortie::trainer::ops {
namespace {

template <class T>
void scale_values(ExecutionContext& context, const Tensor& x, float factor, Tensor& y) {
  constexpr std::int64_t kGrain = 16384;  // elements
  const T* in = x.data<T>();
  T* out = y.data<T>();
  parallel_ranges(context, x.elements(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      out[i] = static_cast<T>(static_cast<float>(in[i]) * factor);
  });
  context.poll();
}

}  // namespace

void CpuBackend::scale(ExecutionContext& context, const Tensor& x, float factor, Tensor& y) {
  if (x.dtype() == DType::bf16)
    scale_values<bf16>(context, x, factor, y);
  else
    scale_values<float>(context, x, factor, y);
}

}  // namespace sortie::trainer::ops
