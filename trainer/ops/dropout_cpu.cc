// Dropout over threads.
#include <algorithm>

#include "trainer/ops/backend_cpu.h"
#include "trainer/ops/dropout_impl.h"

namespace sortie::trainer::ops {

void dropout_cpu(ExecutionContext& context, const Dropout& dropout, std::int64_t samples,
                 const Tensor& x, Tensor& y) {
  constexpr std::int64_t kGrain = 16384;  // elements of one call; divides 2^32
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
      kernels.dropout(dropout_row(dropout, sample, begin), in + offset, out + offset,
                      std::min(kGrain, count - begin));
    }
  });
  context.poll();
}

}  // namespace sortie::trainer::ops
