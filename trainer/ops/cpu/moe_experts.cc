// Rows to experts and back. A token's sums run over its choices in order, in f32.
#include <cstring>

#include "trainer/ops/cpu/cpu_backend.h"

namespace sortie::trainer::ops {
namespace {

constexpr std::int64_t kTokenGrain = 16;

std::byte* row_at(const Tensor& x, std::int64_t row) {
  return static_cast<std::byte*>(x.raw()) +
         static_cast<std::size_t>(row * x.stride(0)) * dtype_bytes(x.dtype());
}

std::int64_t row_count_of(const ExpertRows& rows) {
  return rows.begin.data<std::int64_t>()[rows.experts];
}

/// out[token] = sum over its choices of factor(choice) * sorted[row of choice]
template <class Factor>
void gather_sum(ExecutionContext& context, const ExpertRows& rows, const Tensor& sorted,
                const Factor& factor, Tensor& out) {
  const std::int64_t cols = sorted.size(1);
  const auto& kernels = typed_kernels(context, sorted.dtype());
  const auto* row_of = rows.row_of.data<std::int32_t>();
  parallel_ranges(context, rows.tokens, kTokenGrain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> sum(static_cast<std::size_t>(cols));
    for (std::int64_t token = begin; token < end; ++token) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (std::int64_t j = 0; j < rows.top_k; ++j) {
        const std::int64_t choice = token * rows.top_k + j;
        if (row_of[choice] < 0) continue;
        kernels.add_scaled_to_f32(sum.data(), row_at(sorted, row_of[choice]), cols, factor(choice));
      }
      kernels.from_f32(sum.data(), row_at(out, token), cols);
    }
  });
  context.poll();
}

std::int64_t padded_rows(std::int64_t rows, std::int64_t unit) {
  return (rows + unit - 1) / unit * unit;
}

}  // namespace

void CpuBackend::sort_by_expert(ExecutionContext&, const Tensor& experts, ExpertRows& rows) {
  const std::int64_t choices = experts.elements();
  const auto* chosen = experts.data<std::int32_t>();
  std::vector<std::int64_t> next(static_cast<std::size_t>(rows.experts));  // counts at first
  for (std::int64_t i = 0; i < choices; ++i) {
    if (rows.limited && chosen[i] == -1) continue;
    SORTIE_CHECK(chosen[i] >= 0 && chosen[i] < rows.experts, "expert {} of {}", chosen[i],
                 rows.experts);
    ++next[static_cast<std::size_t>(chosen[i])];
  }
  auto* begin = rows.begin.data<std::int64_t>();
  begin[0] = 0;
  for (std::int64_t e = 0; e < rows.experts; ++e) {
    begin[e + 1] = begin[e] + padded_rows(next[static_cast<std::size_t>(e)], rows.unit);
    next[static_cast<std::size_t>(e)] = begin[e];
  }
  auto* source = rows.source.data<std::int32_t>();
  auto* row_of = rows.row_of.data<std::int32_t>();
  std::fill_n(source, begin[rows.experts], -1);
  for (std::int64_t i = 0; i < choices; ++i) {
    if (chosen[i] < 0) {
      row_of[i] = -1;
      continue;
    }
    const std::int64_t row = next[static_cast<std::size_t>(chosen[i])]++;
    row_of[i] = static_cast<std::int32_t>(row);
    source[row] = static_cast<std::int32_t>(i);
  }
}

void CpuBackend::dispatch_forward(ExecutionContext& context, const ExpertRows& rows,
                                  const Tensor& x, Tensor& sorted) {
  const std::size_t bytes = static_cast<std::size_t>(x.size(1)) * dtype_bytes(x.dtype());
  const auto* source = rows.source.data<std::int32_t>();
  parallel_ranges(
      context, row_count_of(rows), kTokenGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          if (source[row] < 0)
            std::memset(row_at(sorted, row), 0, bytes);
          else
            std::memcpy(row_at(sorted, row), row_at(x, source[row] / rows.top_k), bytes);
        }
      });
  context.poll();
}

void CpuBackend::dispatch_backward(ExecutionContext& context, const ExpertRows& rows,
                                   const Tensor& dsorted, Tensor& dx) {
  gather_sum(
      context, rows, dsorted, [](std::int64_t) { return 1.0f; }, dx);
}

void CpuBackend::combine_forward(ExecutionContext& context, const ExpertRows& rows,
                                 const Tensor& sorted, const Tensor& weights, Tensor& y) {
  const float* weight = weights.data<float>();
  gather_sum(
      context, rows, sorted, [weight](std::int64_t choice) { return weight[choice]; }, y);
}

void CpuBackend::combine_backward(ExecutionContext& context, const ExpertRows& rows,
                                  const Tensor& dy, const Tensor& sorted, const Tensor& weights,
                                  Tensor& dsorted, Tensor& dweights) {
  const std::int64_t cols = dy.size(1);
  const std::size_t bytes = static_cast<std::size_t>(cols) * dtype_bytes(dy.dtype());
  const auto& kernels = typed_kernels(context, dy.dtype());
  const auto* source = rows.source.data<std::int32_t>();
  parallel_ranges(
      context, row_count_of(rows), kTokenGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          std::byte* out = row_at(dsorted, row);
          const std::int64_t choice = source[row];
          if (choice < 0) {
            std::memset(out, 0, bytes);
            continue;
          }
          const std::byte* gradient = row_at(dy, choice / rows.top_k);
          dweights.data<float>()[choice] = kernels.dot(gradient, row_at(sorted, row), cols);
          std::memcpy(out, gradient, bytes);
          kernels.scale(out, cols, weights.data<float>()[choice]);
        }
      });
  context.poll();
}

}  // namespace sortie::trainer::ops
