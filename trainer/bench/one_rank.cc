#include "trainer/bench/one_rank.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "common/base/elapsed.h"
#include "trainer/ops/copy.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/linear.h"
#include "trainer/ops/products.h"
#include "trainer/random/random.h"

namespace sortie::trainer {
namespace {

/// Returns the seconds of one `work`: on a CPU, the fastest of `iterations`; on a GPU, which gets
/// one after another without a wait, the mean of the best of three rounds.
template <class Work>
double fastest(ExecutionContext& context, int iterations, const Work& work) {
  work();
  context.synchronize();
  const int rounds = context.streams() != nullptr ? 3 : iterations;
  const int works = context.streams() != nullptr ? iterations : 1;
  double best = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < works; ++i) work();
    context.synchronize();
    best = std::min(best, seconds_since(begin) / works);
  }
  return best;
}

/// Normal random values, which repeat after kDifferent. A GPU multiplies trivial values faster than
/// real ones, because they need less power.
Tensor some(ExecutionContext& context, DType dtype, Shape shape) {
  constexpr std::size_t kDifferent = 65537;
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = i < kDifferent ? random_normal(1, i) : values[i - kDifferent];
  const Tensor plain = ops::tensor_from_host<float>(context, values, shape);
  if (dtype == DType::f32) return plain;
  Tensor converted = context.empty(dtype, shape);
  ops::convert(context, plain, converted);
  return converted;
}

}  // namespace

MatmulSeconds bench_matmul(ExecutionContext& context, const MatmulBench& bench) {
  ops::set_product_options(context, {.timed = bench.timed});
  const Tensor x = some(context, bench.dtype, {bench.rows, bench.in});
  const Tensor dy = some(context, bench.dtype, {bench.rows, bench.out});
  const ops::PackedWeight w(some(context, bench.dtype, {bench.out, bench.in}));
  Tensor y = context.empty(bench.dtype, {bench.rows, bench.out});
  Tensor dx = context.empty(bench.dtype, {bench.rows, bench.in});
  Tensor dw = context.zeros(DType::f32, {bench.out, bench.in});
  Tensor none;
  MatmulSeconds seconds;
  seconds.forward =
      fastest(context, bench.iterations, [&] { ops::linear_forward(context, x, w, none, y); });
  seconds.data_gradient =
      fastest(context, bench.iterations, [&] { ops::linear_backward_data(context, dy, w, dx); });
  seconds.weight_gradient = fastest(context, bench.iterations,
                                    [&] { ops::linear_backward_weight(context, dy, x, dw, none); });
  return seconds;
}

// Source: NVIDIA's white papers of the architectures, which give operations per clock and
// multiprocessor, dense and with f32 sums.
double peak_flop_s(const GpuFacts& gpu, DType dtype) {
  const int capability = gpu.compute_capability;
  double per_clock = 0;
  if (dtype == DType::f32) {
    per_clock = capability == 80 ? 128 : 256;
  } else if (capability == 80) {
    per_clock = 2048;
  } else if (capability == 90) {
    per_clock = 4096;
  } else if (capability == 100 || capability == 103) {
    per_clock = 8192;
  } else if (capability == 86 || capability == 89 || capability == 120) {
    // GeForce boards have half the rate with sums in f32.
    per_clock = gpu.name.find("GeForce") != std::string::npos ? 512 : 1024;
  } else {
    return 0;
  }
  return per_clock * gpu.multiprocessors * 1e6 * gpu.clock_mhz;
}

CopySeconds bench_copy(ExecutionContext& context, std::int64_t bytes, int iterations) {
  const std::int64_t elements = std::max<std::int64_t>(bytes / 4, 1);
  const Tensor from = some(context, DType::f32, {elements});
  Tensor to = context.zeros(DType::f32, {elements});
  CopySeconds seconds;
  seconds.one_thread = fastest(context, iterations, [&] {
    std::memcpy(to.raw(), from.raw(), static_cast<std::size_t>(elements) * 4);
  });
  char* const target = static_cast<char*>(to.raw());
  const char* const source = static_cast<const char*>(from.raw());
  constexpr std::int64_t kPiece = 1 << 20;
  const std::int64_t all = elements * 4;
  seconds.all_threads = fastest(context, iterations, [&] {
#pragma omp parallel for schedule(static) num_threads(context.threads())
    for (std::int64_t begin = 0; begin < all; begin += kPiece)
      std::memcpy(target + begin, source + begin,
                  static_cast<std::size_t>(std::min(kPiece, all - begin)));
  });
  return seconds;
}

}  // namespace sortie::trainer
