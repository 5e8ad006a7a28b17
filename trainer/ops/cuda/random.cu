// Compiled without contraction to FMA, like trainer/random.
#include "trainer/ops/cuda/random.h"

#include "trainer/ops/cuda/device.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/random/uncontracted.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    normal_kernel(std::uint64_t key, std::uint64_t first, float std_dev, std::int64_t count,
                  float* x) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) x[i] = std_dev * uncontracted::normal(key, first + static_cast<std::uint64_t>(i));
}

}  // namespace

void normal_values(cudaStream_t stream, std::uint64_t key, std::int64_t first, float std_dev,
                   std::int64_t count, float* x) {
  launch(normal_kernel, {.blocks = blocks_for(count, kThreads), .threads = kThreads}, stream, key,
         static_cast<std::uint64_t>(first), std_dev, count, x);
}

}  // namespace sortie::trainer::ops::cuda
