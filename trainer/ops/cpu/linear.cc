// Linear products through oneDNN, and the packed weights.
#include <algorithm>

#include "trainer/ops/cpu/cpu_backend.h"
#include "trainer/ops/cpu/packed_weight.h"

namespace sortie::trainer::ops {
namespace {

/// Rows per piece, so that a piece takes about 20 ms at 1 TFLOP/s and poll() is called often
/// enough.
std::int64_t piece_of(std::int64_t count, std::int64_t other_a, std::int64_t other_b) {
  constexpr std::int64_t kPieceMultiplyAdds = 10'000'000'000;
  const std::int64_t most = kPieceMultiplyAdds / std::max<std::int64_t>(1, other_a * other_b);
  return std::min(count, std::max<std::int64_t>(256, most / 64 * 64));
}

std::byte* row_of(const Tensor::Matrix& matrix, DType dtype, std::int64_t row) {
  return static_cast<std::byte*>(matrix.data) +
         static_cast<std::size_t>(row * matrix.stride) * dtype_bytes(dtype);
}

/// y = x . B for a packed B, in pieces of rows.
void packed_product(ExecutionContext& context, const Tensor& x, PackedForms& forms,
                    const Tensor& plain, std::int64_t b_row, std::int64_t b_col, const Tensor& bias,
                    Tensor& y) {
  const auto in = x.matrix();
  const auto out = y.matrix();
  const std::int64_t piece = piece_of(in.rows, in.cols, out.cols);
  std::shared_ptr<const void> packed;
  dnnl::memory::desc layout;  // of `packed`
  for (std::int64_t begin = 0; begin < in.rows; begin += piece) {
    const MatmulSpec spec{.m = std::min(piece, in.rows - begin),
                          .n = out.cols,
                          .k = in.cols,
                          .input = x.dtype(),
                          .output = y.dtype(),
                          .a_row = in.stride,
                          .b_row = 0,
                          .b_col = 0,
                          .c_row = out.stride,
                          .bias = bias.defined()};
    const auto matmul = find_matmul(context, spec);
    if (begin == 0 || layout != matmul->packed_desc()) {
      packed = {};
      packed = forms.get(context, x.dtype(), plain.raw(), b_row, b_col, matmul->packed_desc());
      layout = matmul->packed_desc();
    }
    run_matmul(context, spec, row_of(in, x.dtype(), begin), packed.get(),
               row_of(out, y.dtype(), begin), bias.defined() ? bias.data<float>() : nullptr);
    context.poll();
  }
}

}  // namespace

std::shared_ptr<const void> PackedForms::get(ExecutionContext& context, DType dtype,
                                             const void* plain, std::int64_t row, std::int64_t col,
                                             const dnnl::memory::desc& desc) {
  const auto type =
      dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  if (desc == dnnl::memory::desc(desc.dims(), type, dnnl::memory::dims{row, col}))
    return {std::shared_ptr<const void>(), plain};  // owns nothing
  if (!context.keeps_packed_weights()) {
    std::shared_ptr<void> copy = context.allocator().allocate(desc.get_size());
    pack(context, dtype, plain, row, col, desc, copy.get());
    return copy;
  }
  auto form = std::find_if(forms_.begin(), forms_.end(),
                           [&](const Form& candidate) { return candidate.desc == desc; });
  if (form == forms_.end()) {
    constexpr std::size_t kMaxForms = 4;
    if (forms_.size() >= kMaxForms) forms_.erase(forms_.begin());
    forms_.push_back({desc, context.allocator().allocate(desc.get_size()), false});
    form = forms_.end() - 1;
  }
  if (!form->fresh) {
    pack(context, dtype, plain, row, col, desc, form->memory.get());
    form->fresh = true;
  }
  return form->memory;
}

CpuPackedCopies& copies_of(const PackedWeight& w) {
  if (w.copies() == nullptr) {
    const std::int64_t tiles = (w.plain().size(0) + kVocabularyTile - 1) / kVocabularyTile;
    w.copies() = std::make_unique<CpuPackedCopies>(static_cast<std::size_t>(tiles));
  }
  return static_cast<CpuPackedCopies&>(*w.copies());
}

void CpuPackedCopies::mark_stale() {
  forward.mark_stale();
  backward_data.mark_stale();
  for (PackedForms& forms : tile_forward) forms.mark_stale();
  for (PackedForms& forms : tile_backward_data) forms.mark_stale();
}

std::size_t CpuPackedCopies::bytes() const {
  std::size_t sum = forward.bytes() + backward_data.bytes();
  for (const PackedForms& forms : tile_forward) sum += forms.bytes();
  for (const PackedForms& forms : tile_backward_data) sum += forms.bytes();
  return sum;
}

void CpuBackend::weight_changed(ExecutionContext&, const PackedWeight& w) {
  if (w.copies() != nullptr) copies_of(w).mark_stale();
}

void CpuBackend::linear_forward(ExecutionContext& context, const Tensor& x, const PackedWeight& w,
                                const Tensor& bias, Tensor& y) {
  const Tensor& plain = w.plain();
  packed_product(context, x, copies_of(w).forward, plain, 1, plain.size(1), bias, y);
}

void CpuBackend::linear_backward_data(ExecutionContext& context, const Tensor& dy,
                                      const PackedWeight& w, Tensor& dx) {
  const Tensor& plain = w.plain();
  packed_product(context, dy, copies_of(w).backward_data, plain, plain.size(1), 1, Tensor(), dx);
}

void CpuBackend::linear_backward_weight(ExecutionContext& context, const Tensor& dy,
                                        const Tensor& x, Tensor& dw, Tensor& dbias,
                                        WriteMode mode_of_dw) {
  const auto gradient = dy.matrix();
  const auto in = x.matrix();
  const DType dtype = dy.dtype();
  const auto column_of = [&](std::int64_t column) {
    return static_cast<std::byte*>(gradient.data) +
           static_cast<std::size_t>(column) * dtype_bytes(dtype);
  };
  const std::int64_t piece = piece_of(gradient.cols, in.cols, in.rows);
  for (std::int64_t begin = 0; dw.defined() && begin < gradient.cols; begin += piece) {
    const MatmulSpec spec{.m = std::min(piece, gradient.cols - begin),
                          .n = in.cols,
                          .k = in.rows,
                          .input = dtype,
                          .output = DType::f32,
                          .a_row = 1,
                          .a_col = gradient.stride,
                          .b_row = in.stride,
                          .c_row = in.cols,
                          .accumulate = mode_of_dw == WriteMode::add};
    run_matmul(context, spec, column_of(begin), in.data, dw.data<float>() + begin * in.cols);
    context.poll();
  }
  if (!dbias.defined()) return;
  const auto& rows = typed_kernels(context, dtype);
  float* sums = dbias.data<float>();
  parallel_ranges(context, gradient.cols, 256, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = 0; row < gradient.rows; ++row)
      rows.add_to_f32(
          sums + begin,
          row_of(gradient, dtype, row) + static_cast<std::size_t>(begin) * dtype_bytes(dtype),
          end - begin);
  });
}

void CpuBackend::merge_low_rank(ExecutionContext& context, Tensor& up, const Tensor& down,
                                float scale, Tensor& w) {
  const std::int64_t rank = up.size(1), columns = w.size(1);
  float* weight = w.data<float>();
  float* left = up.data<float>();
  const float* right = down.data<float>();
  parallel_ranges(context, w.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t r = 0; r < rank; ++r) {
        const float factor = scale * left[row * rank + r];
        for (std::int64_t column = 0; column < columns; ++column)
          weight[row * columns + column] += factor * right[r * columns + column];
      }
  });
  std::fill_n(left, up.elements(), 0.0f);
}

}  // namespace sortie::trainer::ops
