// Linear products through oneDNN, and the packed weights.
#include <algorithm>

#include "trainer/ops/backend_cpu.h"
#include "trainer/ops/linear_impl.h"
#include "trainer/ops/packed_weight_cpu.h"

namespace sortie::trainer::ops {
namespace {

/// Rows per piece so that a piece takes some 20 ms at 1 TFLOP/s and communication gets its turns.
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
  dnnl::memory::desc layout;  // of it
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

PackedWeight::PackedWeight(Tensor plain) : impl_(std::make_unique<Impl>()) {
  SORTIE_CHECK(plain.shape().dims() == 2 && plain.dense() && plain.dtype() != DType::i32,
               "weight {} {}", dtype_name(plain.dtype()), plain.shape().to_string());
  const auto tiles =
      static_cast<std::size_t>((plain.size(0) + kVocabularyTile - 1) / kVocabularyTile);
  impl_->plain = std::move(plain);
  impl_->tile_forward.resize(tiles);
  impl_->tile_backward_data.resize(tiles);
}
PackedWeight::~PackedWeight() = default;
PackedWeight::PackedWeight(PackedWeight&&) noexcept = default;

const Tensor& PackedWeight::plain() const {
  return impl_->plain;
}

void PackedWeight::changed() {
  impl_->forward.mark_stale();
  impl_->backward_data.mark_stale();
  for (PackedForms& forms : impl_->tile_forward) forms.mark_stale();
  for (PackedForms& forms : impl_->tile_backward_data) forms.mark_stale();
}

std::size_t PackedWeight::packed_bytes() const {
  std::size_t sum = impl_->forward.bytes() + impl_->backward_data.bytes();
  for (const PackedForms& forms : impl_->tile_forward) sum += forms.bytes();
  for (const PackedForms& forms : impl_->tile_backward_data) sum += forms.bytes();
  return sum;
}

void linear_forward_cpu(ExecutionContext& context, const Tensor& x, const PackedWeight& w,
                        const Tensor& bias, Tensor& y) {
  const Tensor& plain = w.plain();
  packed_product(context, x, w.impl().forward, plain, 1, plain.size(1), bias, y);
}

void linear_backward_data_cpu(ExecutionContext& context, const Tensor& dy, const PackedWeight& w,
                              Tensor& dx) {
  const Tensor& plain = w.plain();
  packed_product(context, dy, w.impl().backward_data, plain, plain.size(1), 1, Tensor(), dx);
}

void linear_backward_weight_cpu(ExecutionContext& context, const Tensor& dy, const Tensor& x,
                                Tensor& dw, Tensor& dbias) {
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
                          .accumulate = true};
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

}  // namespace sortie::trainer::ops
