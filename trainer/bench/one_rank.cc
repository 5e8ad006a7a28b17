#include "trainer/bench/one_rank.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "common/base/elapsed.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/linear.h"

namespace sortie::trainer {
namespace {

template <class Work>
double fastest(int iterations, const Work& work) {
  work();
  double best = 1e9;
  for (int i = 0; i < iterations; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(best, seconds_since(begin));
  }
  return best;
}

Tensor ones(ExecutionContext& context, DType dtype, Shape shape) {
  Tensor plain = context.empty(DType::f32, shape);
  std::fill_n(plain.data<float>(), plain.elements(), 1.0f);
  if (dtype == DType::f32) return plain;
  Tensor converted = context.empty(dtype, shape);
  ops::convert(context, plain, converted);
  return converted;
}

}  // namespace

MatmulSeconds bench_matmul(ExecutionContext& context, const MatmulBench& bench) {
  const Tensor x = ones(context, bench.dtype, {bench.rows, bench.in});
  const Tensor dy = ones(context, bench.dtype, {bench.rows, bench.out});
  const ops::PackedWeight w(ones(context, bench.dtype, {bench.out, bench.in}));
  Tensor y = context.empty(bench.dtype, {bench.rows, bench.out});
  Tensor dx = context.empty(bench.dtype, {bench.rows, bench.in});
  Tensor dw = context.zeros(DType::f32, {bench.out, bench.in});
  Tensor none;
  MatmulSeconds seconds;
  seconds.forward = fastest(bench.iterations, [&] { ops::linear_forward(context, x, w, none, y); });
  seconds.data_gradient =
      fastest(bench.iterations, [&] { ops::linear_backward_data(context, dy, w, dx); });
  seconds.weight_gradient =
      fastest(bench.iterations, [&] { ops::linear_backward_weight(context, dy, x, dw, none); });
  return seconds;
}

CopySeconds bench_copy(ExecutionContext& context, std::int64_t bytes, int iterations) {
  const std::int64_t elements = std::max<std::int64_t>(bytes / 4, 1);
  const Tensor from = ones(context, DType::f32, {elements});
  Tensor to = context.zeros(DType::f32, {elements});
  CopySeconds seconds;
  seconds.one_thread = fastest(iterations, [&] {
    std::memcpy(to.raw(), from.raw(), static_cast<std::size_t>(elements) * 4);
  });
  char* const target = static_cast<char*>(to.raw());
  const char* const source = static_cast<const char*>(from.raw());
  constexpr std::int64_t kPiece = 1 << 20;
  const std::int64_t all = elements * 4;
  seconds.all_threads = fastest(iterations, [&] {
#pragma omp parallel for schedule(static) num_threads(context.threads())
    for (std::int64_t begin = 0; begin < all; begin += kPiece)
      std::memcpy(target + begin, source + begin,
                  static_cast<std::size_t>(std::min(kPiece, all - begin)));
  });
  return seconds;
}

}  // namespace sortie::trainer
