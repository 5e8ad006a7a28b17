// Fills and copies over threads.
#include <cstring>

#include "trainer/ops/cpu/cpu_backend.h"

namespace sortie::trainer::ops {
namespace {

constexpr std::int64_t kFillGrain = 1 << 18;  // elements

template <class T>
void fill_values(ExecutionContext& context, T value, Tensor& x) {
  T* out = x.data<T>();
  parallel_ranges(context, x.elements(), kFillGrain, [&](std::int64_t begin, std::int64_t end) {
    std::fill(out + begin, out + end, value);
  });
}

/// Steps of a view of up to four dimensions, in bytes.
struct Steps {
  std::int64_t size[kMaxDims] = {1, 1, 1, 1}, step[kMaxDims] = {};
  Steps(const Tensor& x) {
    const int dims = x.shape().dims();
    for (int i = 0; i < dims; ++i) {
      const int to = kMaxDims - dims + i;
      size[to] = x.size(i);
      step[to] = x.stride(i) * static_cast<std::int64_t>(dtype_bytes(x.dtype()));
    }
  }
};

}  // namespace

void CpuBackend::fill(ExecutionContext& context, double value, Tensor& x) {
  if (value == 0.0) {
    const auto bytes = static_cast<std::int64_t>(dtype_bytes(x.dtype()));
    auto* out = static_cast<std::byte*>(x.raw());
    parallel_ranges(context, x.elements() * bytes, kFillGrain * 4,
                    [&](std::int64_t begin, std::int64_t end) {
                      std::memset(out + begin, 0, static_cast<std::size_t>(end - begin));
                    });
    return;
  }
  switch (x.dtype()) {
    case DType::f32:
      return fill_values(context, static_cast<float>(value), x);
    case DType::bf16:
      return fill_values(context, bf16(static_cast<float>(value)), x);
    case DType::f64:
      return fill_values(context, value, x);
    case DType::i32:
      return fill_values(context, static_cast<std::int32_t>(value), x);
    case DType::i64:
      return fill_values(context, static_cast<std::int64_t>(value), x);
    case DType::u8:
      return fill_values(context, static_cast<std::uint8_t>(value), x);
  }
}

void CpuBackend::copy(ExecutionContext&, const Tensor& from, Tensor& to) {
  const Steps in(from), out(to);
  const auto* source = static_cast<const std::byte*>(from.raw());
  auto* target = static_cast<std::byte*>(to.raw());
  const std::size_t bytes = static_cast<std::size_t>(in.size[3]) * dtype_bytes(from.dtype());
  for (std::int64_t a = 0; a < in.size[0]; ++a)
    for (std::int64_t b = 0; b < in.size[1]; ++b)
      for (std::int64_t c = 0; c < in.size[2]; ++c)
        std::memcpy(target + a * out.step[0] + b * out.step[1] + c * out.step[2],
                    source + a * in.step[0] + b * in.step[1] + c * in.step[2], bytes);
}

void CpuBackend::copy_to_place(ExecutionContext& context, const Tensor& from, const Tensor& place,
                               Tensor& to) {
  const std::int64_t first = *place.data<std::int32_t>();
  SORTIE_CHECK(first >= 0 && first + from.size(1) <= to.size(1), "{} rows from {} on of {}",
               from.size(1), first, to.size(1));
  Tensor rows = to.slice(1, first, from.size(1));
  copy(context, from, rows);
}

void CpuBackend::copy_from_host(ExecutionContext&, std::span<const std::byte> from, Tensor& to) {
  std::memcpy(to.raw(), from.data(), from.size());
}

void CpuBackend::copy_to_host(ExecutionContext&, const Tensor& from, std::span<std::byte> to) {
  std::memcpy(to.data(), from.raw(), to.size());
}

void CpuBackend::accumulate(ExecutionContext&, const Tensor& from, Tensor& sums) {
  const double* values = from.data<double>();
  double* total = sums.data<double>();
  for (std::int64_t i = 0; i < from.elements(); ++i) total[i] += values[i];
}

}  // namespace sortie::trainer::ops
