// Random numbers over threads. Compiled without FMA: every CPU computes the same bits.
#include "trainer/random/random.h"
#include "trainer/ops/cpu/cpu_backend.h"

namespace sortie::trainer::ops {

void CpuBackend::random_normal(ExecutionContext& context, std::uint64_t key, std::int64_t first,
                               double std_dev, Tensor& x) {
  constexpr std::int64_t kGrain = 4096;  // elements
  float* values = x.data<float>();
  parallel_ranges(context, x.elements(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      values[i] = static_cast<float>(std_dev) *
                  trainer::random_normal(key, static_cast<std::uint64_t>(first + i));
  });
}

}  // namespace sortie::trainer::ops
