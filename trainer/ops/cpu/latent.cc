// Rows of latent attention over threads.
#include <cstring>

#include "trainer/ops/cpu/cpu_backend.h"

namespace sortie::trainer::ops {
namespace {

constexpr std::int64_t kLatentGrain = 16;

std::byte* at(const Tensor& x, std::int64_t row, std::int64_t col) {
  return static_cast<std::byte*>(x.raw()) +
         static_cast<std::size_t>(row * x.stride(0) + col) * dtype_bytes(x.dtype());
}
std::byte* at(const Tensor& x, std::int64_t row, std::int64_t head, std::int64_t col) {
  return at(x, row, head * x.stride(1) + col);
}

template <class Body>
void for_each_token(ExecutionContext& context, std::int64_t rows, const Body& body) {
  parallel_ranges(context, rows, kLatentGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) body(row);
  });
  context.poll();
}

}  // namespace

void CpuBackend::latent_keys_forward(ExecutionContext& context, const Tensor& kv,
                                     const Tensor& rope, Tensor& k) {
  const std::int64_t heads = k.size(1), shared = rope.size(1), own = k.size(2) - shared;
  const std::size_t bytes = dtype_bytes(k.dtype());
  for_each_token(context, k.size(0), [&](std::int64_t row) {
    for (std::int64_t h = 0; h < heads; ++h) {
      std::memcpy(at(k, row, h, 0), at(kv, row, h, 0), static_cast<std::size_t>(own) * bytes);
      std::memcpy(at(k, row, h, own), at(rope, row, 0), static_cast<std::size_t>(shared) * bytes);
    }
  });
}

void CpuBackend::latent_keys_backward(ExecutionContext& context, const Tensor& dk, Tensor& dkv,
                                      Tensor& drope) {
  const std::int64_t heads = dk.size(1), shared = drope.size(1), own = dk.size(2) - shared;
  const std::size_t bytes = dtype_bytes(dk.dtype());
  const auto& kernels = typed_kernels(context, dk.dtype());
  parallel_ranges(context, dk.size(0), kLatentGrain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> sum(static_cast<std::size_t>(shared));
    for (std::int64_t row = begin; row < end; ++row) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (std::int64_t h = 0; h < heads; ++h) {
        std::memcpy(at(dkv, row, h, 0), at(dk, row, h, 0), static_cast<std::size_t>(own) * bytes);
        kernels.add_to_f32(sum.data(), at(dk, row, h, own), shared);
      }
      kernels.from_f32(sum.data(), at(drope, row, 0), shared);
    }
  });
  context.poll();
}

void CpuBackend::concat_columns(ExecutionContext& context, const Tensor& a, const Tensor& b,
                                Tensor& y) {
  const std::size_t bytes = dtype_bytes(y.dtype());
  const auto left = static_cast<std::size_t>(a.size(1)),
             right = static_cast<std::size_t>(b.size(1));
  for_each_token(context, y.size(0), [&](std::int64_t row) {
    std::memcpy(at(y, row, 0), at(a, row, 0), left * bytes);
    std::memcpy(at(y, row, a.size(1)), at(b, row, 0), right * bytes);
  });
}

}  // namespace sortie::trainer::ops
