// LM head and cross-entropy in chunks of rows: a product computes f32 logits, gradients replace
// them in their own memory, and two more products use the gradients.
#include "trainer/ops/cuda/cross_entropy.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/tensor_views.h"

namespace sortie::trainer::ops::cuda {
namespace {

struct Range {
  std::int64_t begin, count;
};

/// The head's products. An odd vocabulary size would require kernels without 16-byte accesses. If
/// columns are a dimension of the result, rows of padding are therefore multiplied too, or the last
/// few columns separately.
class Head {
 public:
  Head(ExecutionContext& context, Products& products, const Tensor& h, const PackedWeight& w,
       const Tensor& targets, const CrossEntropySpec& spec)
      : context_(context),
        products_(products),
        stream_(current_stream(context)),
        dtype_(h.dtype()),
        h_(h.matrix()),
        w_(w.plain()),
        targets_(address<const std::int32_t>(targets)),
        spec_(spec),
        columns_(std::clamp<std::int64_t>(spec.vocab_size - spec.first_token, 0, w_.size(0))) {}

  cudaStream_t stream() const { return stream_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t line() const { return head_line(columns_); }
  HeadRows rows(Range rows) const {
    return {.rows = rows.count,
            .columns = columns_,
            .first = spec_.first_token,
            .vocab_size = spec_.vocab_size,
            .targets = targets_ + rows.begin,
            .grad_scale = spec_.grad_scale,
            .step_scale = address<const float>(spec_.step_scale)};
  }

  void logits(Range rows, float* to) const {
    for (const Range part : parts())
      products_.run(context_,
                    {.m = rows.count,
                     .n = part.count,
                     .k = h_.cols,
                     .input = dtype_,
                     .b_transposed = true,
                     .a_row = h_.stride,
                     .b_row = h_.cols,
                     .c_row = line()},
                    {.a = h_row(rows.begin), .b = w_row(part.begin), .c = to + part.begin});
  }

  /// From the logits' gradients; those beyond the columns are 0 if lines have room for them.
  template <class T>
  void gradients(Range rows, const T* of_logits, std::int64_t stride, Tensor& dh,
                 Tensor& dw) const {
    data_gradient<T>(rows, of_logits, stride, dh);
    if (!dw.defined()) return;
    // Rows of padding that no product writes keep their initial 0.
    const bool replaces = spec_.mode_of_dw == WriteMode::replace && rows.begin == 0;
    for (const Range part : parts())
      products_.run(context_,
                    {.m = std::min(part.count, stride - part.begin),
                     .n = h_.cols,
                     .k = rows.count,
                     .input = dtype_,
                     .a_transposed = true,
                     .a_row = stride,
                     .b_row = h_.stride,
                     .c_row = h_.cols,
                     .accumulate = !replaces},
                    {.a = of_logits + part.begin,
                     .b = h_row(rows.begin),
                     .c = address<float>(dw) + part.begin * h_.cols});
  }

 private:
  std::vector<Range> parts() const {
    const std::int64_t rest = columns_ % kHeadPack;
    if (columns_ == 0) return {};
    if (line() <= w_.size(0)) return {{0, line()}};
    if (rest == 0 || columns_ < kFewColumns) return {{0, columns_}};
    return {{0, columns_ - rest}, {columns_ - rest, rest}};
  }

  template <class T>
  void data_gradient(Range rows, const T* of_logits, std::int64_t stride, Tensor& dh) const {
    Rows<T> to = rows_of<T>(dh);
    to = {to.data + rows.begin * to.stride, rows.count, to.cols, to.stride};
    // Rows of padding may contain anything, and 0 * NaN is NaN.
    const std::int64_t rest = head_rest(columns_);
    const std::int64_t whole = columns_ - rest;
    Rows<const float> sums;
    Tensor kept;
    void* target = to.data;
    DType output = dtype_;
    std::int64_t target_row = to.stride;
    if (rest > 0) {
      kept = context_.empty(DType::f32, {rows.count, h_.cols});
      sums = rows_of<const float>(kept);
      target = kept.raw();
      output = DType::f32;
      target_row = h_.cols;
    }
    if (whole > 0)
      products_.run(context_,
                    {.m = rows.count,
                     .n = h_.cols,
                     .k = whole,
                     .input = dtype_,
                     .output = output,
                     .a_row = stride,
                     .b_row = h_.cols,
                     .c_row = target_row},
                    {.a = of_logits, .b = w_.raw(), .c = target});
    if (rest > 0 || columns_ == 0)
      add_few_products<T>(stream_, {of_logits + whole, rows.count, rest, stride},
                          {address<const T>(w_) + whole * h_.cols, rest, h_.cols, h_.cols}, sums,
                          to);
  }

  const void* h_row(std::int64_t row) const {
    return static_cast<const std::byte*>(h_.data) +
           static_cast<std::size_t>(row * h_.stride) * dtype_bytes(dtype_);
  }
  const void* w_row(std::int64_t row) const {
    return static_cast<const std::byte*>(w_.raw()) +
           static_cast<std::size_t>(row * h_.cols) * dtype_bytes(dtype_);
  }

  ExecutionContext& context_;
  Products& products_;
  const cudaStream_t stream_;
  const DType dtype_;
  const Tensor::Matrix h_;
  const Tensor& w_;
  const std::int32_t* const targets_;
  const CrossEntropySpec& spec_;
  const std::int64_t columns_;  // of this part, without padding
};

/// Elements between rows of a part's exponentials, whose memory is [rows, columns] or slightly
/// more.
std::int64_t exponential_line(const Tensor& exponentials, const Head& head, std::int64_t rows) {
  return head.line() * rows <= exponentials.elements() ? head.line() : head.columns();
}

}  // namespace

void CudaBackend::linear_cross_entropy(Context& context, const Tensor& h, const PackedWeight& w,
                                       const Tensor& targets, const CrossEntropySpec& spec,
                                       Tensor& dh, Tensor& dw, Tensor& loss) {
  const std::int64_t all = targets.elements();
  const Head head(context, products_, h, w, targets, spec);
  const std::int64_t most =
      head_chunk_rows(product_options_, all, head.line(), dw.defined() ? dw.elements() : 0);
  const Tensor logits = context.empty(DType::f32, {most, head.line()});
  const Tensor losses = context.empty(DType::f64, {all});
  auto* const values = address<float>(logits);
  with_float_type(h.dtype(), [&]<class T> {
    // In place: a row of gradients is the end of its line of logits.
    constexpr std::int64_t kPerLogit = std::is_same_v<T, float> ? 1 : 2;
    const std::int64_t stride = head.line() * kPerLogit;
    T* const gradients =
        dh.defined() ? reinterpret_cast<T*>(values) + (stride - head.line()) : nullptr;
    for (std::int64_t begin = 0; begin < all; begin += most) {
      const Range rows{begin, std::min(most, all - begin)};
      head.logits(rows, values);
      softmax_losses(head.stream(), head.rows(rows), values, head.line(), half_shared_bytes_,
                     address<double>(losses) + begin, gradients, stride);
      if (gradients != nullptr) head.gradients<T>(rows, gradients, stride, dh, dw);
    }
  });
  add_losses(head.stream(), address<double>(losses), address<const std::int32_t>(targets), all,
             spec.loss_scale, address<double>(loss));
}

void CudaBackend::begin_cross_entropy(Context& context, const Tensor& h, const PackedWeight& w,
                                      const Tensor& targets, const CrossEntropySpec& spec,
                                      bool with_gradients, CrossEntropyPart& part) {
  const std::int64_t all = targets.elements();
  const Head head(context, products_, h, w, targets, spec);
  const std::int64_t line = std::max<std::int64_t>(head.line(), kHeadPack);
  const std::int64_t most = head_chunk_rows(product_options_, all, line, 0);
  const std::int64_t stride = exponential_line(part.exponentials, head, all);
  const Tensor logits = context.empty(DType::f32, {most, line});
  with_float_type(h.dtype(), [&]<class T> {
    for (std::int64_t begin = 0; begin < all; begin += most) {
      const Range rows{begin, std::min(most, all - begin)};
      head.logits(rows, address<float>(logits));
      part_exponentials<T>(
          head.stream(), head.rows(rows), address<float>(logits), line,
          address<double>(part.stats) + 3 * begin,
          with_gradients ? address<T>(part.exponentials) + begin * stride : nullptr, stride);
    }
  });
}

void CudaBackend::finish_cross_entropy(Context& context, const Tensor& h, const PackedWeight& w,
                                       const Tensor& targets, const CrossEntropySpec& spec,
                                       const CrossEntropyPart& part, const Tensor& all_stats,
                                       Tensor& dh, Tensor& dw, Tensor& loss) {
  const std::int64_t all = targets.elements();
  const Head head(context, products_, h, w, targets, spec);
  const Range rows{0, all};
  const std::int64_t stride = exponential_line(part.exponentials, head, all);
  const Tensor losses = context.empty(DType::f64, {all});
  const Tensor factors = context.empty(DType::f32, {all});
  join_stats(head.stream(), head.rows(rows), address<double>(all_stats),
             all_stats.elements() / part.stats.elements(), address<double>(part.stats),
             address<double>(losses), address<float>(factors));
  add_losses(head.stream(), address<double>(losses), address<const std::int32_t>(targets), all,
             spec.loss_scale, address<double>(loss));
  if (!dh.defined()) return;
  with_float_type(h.dtype(), [&]<class T> {
    T* const gradients = address<T>(part.exponentials);
    if (head.columns() > 0)
      part_gradients(head.stream(), head.rows(rows), address<float>(factors), gradients, stride);
    head.gradients<T>(rows, gradients, stride, dh, dw);
  });
}

}  // namespace sortie::trainer::ops::cuda
