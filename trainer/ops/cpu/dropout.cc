// Dropout over threads, and the generator's state.
#include <algorithm>
#include <cmath>

#include "trainer/ops/cpu/cpu_backend.h"
#include "trainer/ops/cpu/dropout_rows.h"
#include "trainer/random/random.h"

namespace sortie::trainer::ops {

DropoutRow dropout_row(const Dropout& dropout, std::int64_t b, std::int64_t begin) {
  const std::int64_t first = dropout.first.defined() ? *dropout.first.data<std::int64_t>() : 0;
  const auto sample = static_cast<std::uint64_t>(first + dropout.first_sample + b);
  const auto position = static_cast<std::uint64_t>(begin);
  const std::uint64_t high = position >> 32;
  const std::uint64_t key = mix64(random_bits(dropout.key, sample) + kMixStep * high);
  DropoutRow row{};
  row.key0 = static_cast<std::uint32_t>(key);
  row.key1 = static_cast<std::uint32_t>(key >> 32);
  row.begin = static_cast<std::uint32_t>(position);
  row.threshold = static_cast<std::uint32_t>(
      std::min(4294967295.0, std::floor(static_cast<double>(dropout.probability) * 0x1p32)));
  row.scale = 1.0f / (1.0f - dropout.probability);
  return row;
}

void CpuBackend::dropout(ExecutionContext& context, const Dropout& dropout, std::int64_t samples,
                         const Tensor& x, Tensor& y) {
  constexpr std::int64_t kGrain = 16384;  // elements of one call
  const std::int64_t count = x.elements() / samples;
  const std::int64_t pieces = (count + kGrain - 1) / kGrain;
  const auto& kernels = typed_kernels(context, x.dtype());
  const std::size_t bytes = dtype_bytes(x.dtype());
  const auto* in = static_cast<const std::byte*>(x.raw());
  auto* out = static_cast<std::byte*>(y.raw());
  parallel_ranges(context, samples * pieces, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t sample = i / pieces, begin = i % pieces * kGrain;
      const auto offset = static_cast<std::size_t>(sample * count + begin) * bytes;
      drop(kernels, bytes, dropout, sample, begin, in + offset, out + offset,
           std::min(kGrain, count - begin));
    }
  });
  context.poll();
}

}  // namespace sortie::trainer::ops
