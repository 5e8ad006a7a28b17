// Random numbers, defined in random.cu.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sortie::trainer::ops::cuda {

/// x[i] = std_dev * random_normal(key, first + i), with the CPU's bits.
void normal_values(cudaStream_t stream, std::uint64_t key, std::int64_t first, float std_dev,
                   std::int64_t count, float* x);

}  // namespace sortie::trainer::ops::cuda
