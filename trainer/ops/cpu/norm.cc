// Norms over threads. Rows are independent. Weight gradients are summed within blocks of rows,
// whose number depends only on the row count, then block after block.
#include <cstring>

#include "trainer/ops/cpu/cpu_backend.h"

namespace sortie::trainer::ops {

void CpuBackend::residual_norm_forward(ExecutionContext& context, NormKind kind,
                                       const Tensor& residual, const Tensor& branch,
                                       const Tensor& weight, const Tensor& bias, float eps,
                                       Tensor& residual_out, Tensor& y, Tensor& stats) {
  const auto x = residual.matrix();
  const auto sum = residual_out.matrix();
  const auto out = y.matrix();
  const auto added = branch.defined() ? branch.matrix() : Tensor::Matrix{};
  const NormForwardRows rows{.residual = x.data,
                             .branch = added.data,
                             .residual_out = sum.data,
                             .y = out.data,
                             .weight = weight.data<float>(),
                             .bias = bias.defined() ? bias.data<float>() : nullptr,
                             .stats = stats.data<float>(),
                             .cols = x.cols,
                             .residual_stride = x.stride,
                             .branch_stride = added.stride,
                             .residual_out_stride = sum.stride,
                             .y_stride = out.stride,
                             .eps = eps,
                             .layer = kind == NormKind::layer};
  const auto& kernels = typed_kernels(context, residual.dtype());
  parallel_ranges(context, x.rows, 8, [&](std::int64_t begin, std::int64_t end) {
    kernels.norm_forward(rows, begin, end);
  });
  context.poll();
}

void CpuBackend::residual_norm_backward(ExecutionContext& context, NormKind kind, const Tensor& dy,
                                        const Tensor& dresidual, const Tensor& x,
                                        const Tensor& weight, const Tensor& stats, Tensor& dx,
                                        Tensor& dweight, Tensor& dbias) {
  const auto gradient = dy.matrix();
  const auto in = x.matrix();
  const auto out = dx.matrix();
  const auto direct = dresidual.defined() ? dresidual.matrix() : Tensor::Matrix{};
  const std::int64_t cols = in.cols;
  constexpr std::int64_t kMinRows = 64, kMaxBlocks = 64;
  const std::int64_t per_block = std::max(kMinRows, (in.rows + kMaxBlocks - 1) / kMaxBlocks);
  const std::int64_t blocks = (in.rows + per_block - 1) / per_block;
  const Tensor partial = context.empty(DType::f32, {blocks, 2, cols});
  float* sums = partial.data<float>();
  if (is_meta(context)) return;
  std::memset(sums, 0, static_cast<std::size_t>(partial.elements()) * sizeof(float));

  const NormBackwardRows rows{.dy = gradient.data,
                              .dresidual = direct.data,
                              .x = in.data,
                              .dx = out.data,
                              .weight = weight.data<float>(),
                              .stats = stats.data<float>(),
                              .dweight = nullptr,
                              .dbias = nullptr,
                              .cols = cols,
                              .dy_stride = gradient.stride,
                              .dresidual_stride = direct.stride,
                              .x_stride = in.stride,
                              .dx_stride = out.stride,
                              .layer = kind == NormKind::layer};
  const auto& kernels = typed_kernels(context, x.dtype());
  parallel_ranges(context, in.rows, per_block, [&](std::int64_t begin, std::int64_t end) {
    NormBackwardRows own = rows;
    own.dweight = sums + begin / per_block * 2 * cols;
    own.dbias = dbias.defined() ? own.dweight + cols : nullptr;
    kernels.norm_backward(own, begin, end);
  });
  const auto& wide = typed_kernels(context, DType::f32);
  for (std::int64_t block = 0; block < blocks; ++block) {
    if (dweight.defined()) wide.add_to_f32(dweight.data<float>(), sums + block * 2 * cols, cols);
    if (dbias.defined()) wide.add_to_f32(dbias.data<float>(), sums + (block * 2 + 1) * cols, cols);
  }
  context.poll();
}

}  // namespace sortie::trainer::ops
