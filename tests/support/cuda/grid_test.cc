// Threads of an emulated GPU: missing synchronization is detected, and correct code passes.
#include "tests/support/cuda/grid.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "tests/support/cuda/in_child.h"
#include "tests/support/cuda/test_gpu.h"

namespace emulated_cuda {
namespace {

using sortie::trainer::ops::cuda::block_sum;
using sortie::trainer::ops::cuda::kAllLanes;
using sortie::trainer::ops::cuda::shared_memory;
using sortie::trainer::ops::cuda::warp_sum;

constexpr unsigned kThreads = 256;

std::vector<float> counted(std::size_t size) {
  std::vector<float> values(size);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

/// Number of the 20 seeds whose result differs from `expected`.
template <class Kernel>
int differing(const Kernel& kernel, const std::vector<float>& expected, std::size_t shared_bytes) {
  int count = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::vector<float> y(expected.size());
    run_grid(
        {static_cast<unsigned>(expected.size()) / kThreads}, {kThreads}, shared_bytes,
        [&] { kernel(y.data()); }, seed);
    if (y != expected) ++count;
  }
  return count;
}

template <bool Barrier>
__global__ void reverse_block(const float* x, float* y) {
  auto* scratch = shared_memory<float>();
  const std::size_t first = std::size_t{blockIdx.x} * kThreads;
  scratch[threadIdx.x] = x[first + threadIdx.x];
  if constexpr (Barrier) __syncthreads();
  y[first + threadIdx.x] = scratch[kThreads - 1 - threadIdx.x];
}

/// Each thread adds its neighbour's value, in several rounds.
template <bool Barrier>
__global__ void rotate(float* y) {
  auto* scratch = shared_memory<float>();
  auto value = static_cast<float>(threadIdx.x);
  for (int round = 0; round < 4; ++round) {
    scratch[threadIdx.x] = value;
    __syncthreads();
    value += scratch[(threadIdx.x + 1) % kThreads];
    if constexpr (Barrier) __syncthreads();
  }
  y[threadIdx.x] = value;
}

template <bool Barrier>
__global__ void reverse_warps(float* y) {
  auto* scratch = shared_memory<float>();
  scratch[threadIdx.x] = static_cast<float>(threadIdx.x);
  if constexpr (Barrier) __syncwarp();
  y[threadIdx.x] = scratch[threadIdx.x ^ 31u];
}

}  // namespace

TEST_CASE("a missing __syncthreads() after writes is found") {
  const std::vector<float> x = counted(4 * kThreads);
  std::vector<float> reversed = x;
  for (auto at = reversed.begin(); at != reversed.end(); at += kThreads)
    std::reverse(at, at + kThreads);
  constexpr std::size_t kShared = kThreads * sizeof(float);
  CHECK(differing([&](float* y) { reverse_block<true>(x.data(), y); }, reversed, kShared) == 0);
  CHECK(differing([&](float* y) { reverse_block<false>(x.data(), y); }, reversed, kShared) == 20);
}

TEST_CASE("a missing __syncthreads() before what was read is written again is found") {
  std::vector<float> expected(kThreads);
  std::iota(expected.begin(), expected.end(), 0.0f);
  for (int round = 0; round < 4; ++round) {
    const std::vector<float> before = expected;
    for (std::size_t i = 0; i < kThreads; ++i) expected[i] += before[(i + 1) % kThreads];
  }
  constexpr std::size_t kShared = kThreads * sizeof(float);
  CHECK(differing([](float* y) { rotate<true>(y); }, expected, kShared) == 0);
  CHECK(differing([](float* y) { rotate<false>(y); }, expected, kShared) == 20);
}

TEST_CASE("a missing __syncwarp() is found") {
  std::vector<float> expected(kThreads);
  for (std::size_t i = 0; i < kThreads; ++i) expected[i] = static_cast<float>(i ^ 31u);
  constexpr std::size_t kShared = kThreads * sizeof(float);
  CHECK(differing([](float* y) { reverse_warps<true>(y); }, expected, kShared) == 0);
  CHECK(differing([](float* y) { reverse_warps<false>(y); }, expected, kShared) == 20);
}

TEST_CASE("shared memory is NaN before it is written, in every block") {
  for (std::uint64_t seed = 1; seed < 4; ++seed) {
    std::vector<float> seen(8 * kThreads);
    run_grid(
        {8}, {kThreads}, kThreads * sizeof(float),
        [&] {
          auto* scratch = shared_memory<float>();
          seen[blockIdx.x * kThreads + threadIdx.x] = scratch[threadIdx.x];
          scratch[threadIdx.x] = 1;
        },
        seed);
    CHECK(std::ranges::all_of(seen, [](float value) { return std::isnan(value); }));
  }
}

TEST_CASE("every thread of every block runs once, and knows its place") {
  std::vector<int> runs(7 * 3 * 2 * 40 * 2);
  run_grid(
      {7, 3, 2}, {40, 2}, 0,
      [&] {
        const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        ++runs[(block * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x];
      },
      5);
  CHECK(std::ranges::all_of(runs, [](int count) { return count == 1; }));
}

TEST_CASE("blocks, warps and lanes have no order") {
  std::set<std::vector<unsigned>> orders_of_blocks, orders_of_threads;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::vector<unsigned> blocks, threads;
    run_grid(
        {16}, {kThreads}, 0,
        [&] {
          if (threadIdx.x == 0) blocks.push_back(blockIdx.x);
          if (blockIdx.x == 0) threads.push_back(threadIdx.x);
        },
        seed);
    orders_of_blocks.insert(blocks);
    orders_of_threads.insert(threads);
  }
  CHECK(orders_of_blocks.size() > 10);
  CHECK(orders_of_threads.size() > 10);
}

TEST_CASE("sums over warps and blocks are those of all threads, with any number of warps") {
  for (const unsigned threads : {32u, 96u, 1024u}) {
    std::vector<float> sums(threads);
    run_grid(
        {1}, {threads}, 32 * sizeof(float),
        [&] {
          const float warp = warp_sum(static_cast<float>(threadIdx.x % 32));
          sums[threadIdx.x] = block_sum(warp, shared_memory<float>());
        },
        threads);
    const std::vector<float> expected(threads, 496.0f * static_cast<float>(threads));
    CHECK(sums == expected);
  }
}

TEST_CASE("threads that have returned are missed by shuffles, and by no barrier") {
  const auto run = [](auto kernel) { run_grid({1}, {64}, 0, kernel, 1); };
  check_lives([&] {
    run([] {
      if (threadIdx.x >= 40) return;
      __syncwarp();
      __syncthreads();
    });
  });
  check_ends("a shuffle or vote of 8 lanes, 24 others have returned", [&] {
    run([] {
      if (threadIdx.x >= 40) return;
      (void)__shfl_sync(kAllLanes, 1.0f, 0);
    });
  });
  check_lives([&] { run([] { (void)__shfl_sync(kAllLanes, 1.0f, 0); }); });
  check_ends("a shuffle or vote in a warp of 8 threads", [&] {
    run_grid(
        {1}, {40}, 0, [] { (void)__shfl_sync(kAllLanes, 1.0f, 0); }, 1);
  });
}

TEST_CASE("lanes of a warp that wait for different things are an error") {
  const auto run = [](auto kernel) { run_grid({1}, {32}, 0, kernel, 1); };
  check_ends("16 of 32 lanes are at a shuffle or vote, the others at a barrier", [&] {
    run([] {
      if (threadIdx.x < 16)
        __syncthreads();
      else
        (void)__ballot_sync(kAllLanes, 1);
    });
  });
  check_ends("16 lanes are at __syncwarp(), 16 at __syncthreads()", [&] {
    run([] {
      if (threadIdx.x < 16)
        __syncthreads();
      else
        __syncwarp();
    });
  });
  check_ends("lanes of a warp meet at different shuffles, votes or products", [&] {
    run([] {
      if (threadIdx.x < 16)
        (void)__shfl_sync(kAllLanes, 1.0f, 0);
      else
        (void)__shfl_sync(kAllLanes, 1.0, 0);
    });
  });
}

TEST_CASE("an access behind the shared memory of a block ends with its name") {
  Gpu gpu;
  const auto touch = [&](unsigned at) {
    gpu.run(
        0, +[](unsigned index) { shared_memory<float>()[index] = 1; },
        {.blocks = 1, .threads = 32, .shared_bytes = 128}, at);
    (void)cudaDeviceSynchronize();
  };
  check_lives([&] { touch(31); });
  check_ends("a kernel is 1 bytes behind the 128 bytes of its block's shared memory",
             [&] { touch(32); });
}

TEST_CASE("a trap says where it is") {
  check_ends("thread (3, 1, 0) of block (2, 0, 0) traps", [] {
    run_grid(
        {4}, {8, 2}, 0,
        [] {
          if (blockIdx.x == 2 && threadIdx.x == 3 && threadIdx.y == 1) __trap();
        },
        1);
  });
}

TEST_CASE("a thread that needs more stack than there is ends with its name") {
  check_ends("needs more stack", [] {
    Gpu gpu;
    gpu.run(
        0,
        +[](int depth) {
          const auto deeper = [](const auto& self, int left) -> int {
            volatile char frame[1024];
            frame[0] = static_cast<char>(left);
            return left == 0 ? frame[0] : self(self, left - 1) + frame[0];
          };
          (void)deeper(deeper, depth);
        },
        {.blocks = 1, .threads = 1}, 1 << 16);
    (void)cudaDeviceSynchronize();
  });
}

}  // namespace emulated_cuda
