// Activations, embedding and conversions over threads.
#include <cstring>

#include "trainer/ops/cpu/cpu_backend.h"

namespace sortie::trainer::ops {
namespace {

constexpr std::int64_t kRowGrain = 4;
constexpr std::int64_t kFlatGrain = 16384;  // elements

/// Addresses elements of a matrix of any dtype.
class Rows {
 public:
  explicit Rows(const Tensor& tensor)
      : matrix_(tensor.matrix()), bytes_(dtype_bytes(tensor.dtype())) {}
  std::byte* at(std::int64_t row, std::int64_t col = 0) const {
    return static_cast<std::byte*>(matrix_.data) +
           static_cast<std::size_t>(row * matrix_.stride + col) * bytes_;
  }
  std::int64_t rows() const { return matrix_.rows; }
  std::int64_t cols() const { return matrix_.cols; }

 private:
  Tensor::Matrix matrix_;
  std::size_t bytes_;
};

/// The value of `rows` if defined, which must be at most `all`; else `all`.
std::int64_t counted(const Tensor& rows, std::int64_t all) {
  if (!rows.defined()) return all;
  SORTIE_CHECK(*rows.data<std::int64_t>() <= all, "{} rows of {}", *rows.data<std::int64_t>(), all);
  return *rows.data<std::int64_t>();
}

template <class Body>
void for_each_row(ExecutionContext& context, std::int64_t rows, const Body& body) {
  parallel_ranges(context, rows, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) body(row);
  });
  context.poll();
}

}  // namespace

void CpuBackend::swiglu_forward(ExecutionContext& context, const Tensor& gate_up,
                                const Tensor& rows, Tensor& y) {
  const Rows in(gate_up), out(y);
  const auto& kernels = typed_kernels(context, y.dtype());
  for_each_row(context, counted(rows, out.rows()), [&](std::int64_t row) {
    kernels.swiglu_forward(in.at(row), in.at(row, out.cols()), out.at(row), out.cols());
  });
}

void CpuBackend::swiglu_backward(ExecutionContext& context, const Tensor& dy, const Tensor& gate_up,
                                 const Tensor& rows, Tensor& dgate_up) {
  const Rows gradient(dy), in(gate_up), out(dgate_up);
  const std::int64_t cols = gradient.cols();
  const auto& kernels = typed_kernels(context, dy.dtype());
  for_each_row(context, counted(rows, gradient.rows()), [&](std::int64_t row) {
    kernels.swiglu_backward(gradient.at(row), in.at(row), in.at(row, cols), out.at(row),
                            out.at(row, cols), cols);
  });
}

void CpuBackend::gelu_forward(ExecutionContext& context, Gelu kind, const Tensor& x, Tensor& y) {
  const Rows in(x), out(y);
  const auto& kernels = typed_kernels(context, x.dtype());
  const auto forward = kind == Gelu::exact ? kernels.gelu_forward : kernels.gelu_new_forward;
  for_each_row(context, in.rows(),
               [&](std::int64_t row) { forward(in.at(row), out.at(row), in.cols()); });
}

void CpuBackend::gelu_backward(ExecutionContext& context, Gelu kind, const Tensor& dy,
                               const Tensor& x, Tensor& dx) {
  const Rows gradient(dy), in(x), out(dx);
  const auto& kernels = typed_kernels(context, x.dtype());
  const auto backward = kind == Gelu::exact ? kernels.gelu_backward : kernels.gelu_new_backward;
  for_each_row(context, in.rows(), [&](std::int64_t row) {
    backward(gradient.at(row), in.at(row), out.at(row), in.cols());
  });
}

namespace {

/// The row of the table for a token; negative if another part holds it.
std::int64_t table_row(std::int32_t token, const TablePart& part, std::int64_t rows) {
  const std::int64_t all = part.all != 0 ? part.all : rows;
  SORTIE_CHECK(token >= 0 && token < all, "token {} of {}", token, all);
  const std::int64_t row = token - part.first;
  return row < rows ? row : -1;
}

}  // namespace

void CpuBackend::embedding_forward(ExecutionContext& context, const Tensor& tokens,
                                   const Tensor& table, const TablePart& part, Tensor& y) {
  const Rows from(table), out(y);
  const auto* ids = tokens.data<std::int32_t>();
  const std::size_t row_bytes = static_cast<std::size_t>(out.cols()) * dtype_bytes(y.dtype());
  for_each_row(context, out.rows(), [&](std::int64_t row) {
    const std::int64_t source = table_row(ids[row], part, from.rows());
    if (source < 0)
      std::memset(out.at(row), 0, row_bytes);
    else
      std::memcpy(out.at(row), from.at(source), row_bytes);
  });
}

void CpuBackend::embedding_backward(ExecutionContext& context, const Tensor& tokens,
                                    const Tensor& dy, const TablePart& part, Tensor& dtable) {
  const Rows gradient(dy), sums(dtable);
  const auto* ids = tokens.data<std::int32_t>();
  const auto& kernels = typed_kernels(context, dy.dtype());
  for (std::int64_t row = 0; row < gradient.rows(); ++row) table_row(ids[row], part, sums.rows());
  // Each thread processes some columns of all tokens, so additions are in token order.
  parallel_ranges(context, gradient.cols(), 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = 0; row < gradient.rows(); ++row) {
      const std::int64_t target = table_row(ids[row], part, sums.rows());
      if (target >= 0)
        kernels.add_to_f32(reinterpret_cast<float*>(sums.at(target, begin)),
                           gradient.at(row, begin), end - begin);
    }
  });
  context.poll();
}

void CpuBackend::add(ExecutionContext& context, const Tensor& a, const Tensor& b, Tensor& y) {
  const Rows first(a), second(b), out(y);
  const auto& kernels = typed_kernels(context, a.dtype());
  for_each_row(context, out.rows(), [&](std::int64_t row) {
    kernels.add(first.at(row), second.at(row), out.at(row), out.cols());
  });
}

void CpuBackend::convert(ExecutionContext& context, const Tensor& from, Tensor& to) {
  const std::size_t from_bytes = dtype_bytes(from.dtype());
  const std::size_t to_bytes = dtype_bytes(to.dtype());
  const auto* in = static_cast<const std::byte*>(from.raw());
  auto* out = static_cast<std::byte*>(to.raw());
  const auto& narrow = kernels(context).bf16;
  parallel_ranges(context, from.elements(), kFlatGrain, [&](std::int64_t begin, std::int64_t end) {
    const std::byte* source = in + static_cast<std::size_t>(begin) * from_bytes;
    std::byte* target = out + static_cast<std::size_t>(begin) * to_bytes;
    if (from.dtype() == to.dtype())
      std::memcpy(target, source, static_cast<std::size_t>(end - begin) * to_bytes);
    else if (to.dtype() == DType::bf16)
      narrow.from_f32(reinterpret_cast<const float*>(source), target, end - begin);
    else
      narrow.to_f32(source, reinterpret_cast<float*>(target), end - begin);
  });
  context.poll();
}

}  // namespace sortie::trainer::ops
