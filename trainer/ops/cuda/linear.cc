// Linear layers: products by cuBLASLt, which needs no rearranged weights.
#include "trainer/ops/cuda/linear.h"

#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/error.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/tensor_views.h"

namespace sortie::trainer::ops::cuda {

void CudaBackend::set_product_options(const ProductOptions& options) {
  product_options_ = options;
  products_.set_options(options);
}
std::string CudaBackend::product_choices() const {
  return products_.choices();
}
Result<> CudaBackend::use_product_choices(Context&, std::string_view text) {
  return products_.use_choices(text);
}
void CudaBackend::forget_product_choices() {
  products_.forget_choices();
}

void CudaBackend::weight_changed(Context&, const PackedWeight& w) {
  if (w.copies() != nullptr) static_cast<Fp8Copies&>(*w.copies()).mark_stale();
}

void CudaBackend::linear_forward(Context& context, const Tensor& x, const PackedWeight& w,
                                 const Tensor& bias, Tensor& y) {
  const Tensor::Matrix in = x.matrix(), out = y.matrix();
  multiply_with_bias(context,
                     {.m = in.rows,
                      .n = out.cols,
                      .k = in.cols,
                      .input = x.dtype(),
                      .output = y.dtype(),
                      .b_transposed = true,
                      .a_row = in.stride,
                      .b_row = in.cols,
                      .c_row = out.stride},
                     {.a = in.data, .b = w.plain().raw(), .c = out.data}, bias, y);
}

void CudaBackend::multiply_with_bias(Context& context, Product product, Operands operands,
                                     const Tensor& bias, Tensor& y) {
  if (!bias.defined()) return products_.run(context, product, operands);
  // The library adds a bias of the result's type.
  Tensor rounded;
  operands.bias = bias.raw();
  if (y.dtype() != DType::f32 || reinterpret_cast<std::uintptr_t>(operands.bias) % 16 != 0) {
    rounded = context.empty(y.dtype(), {product.n});
    with_float_type(y.dtype(), [&]<class T> {
      round_bias(current_stream(context), flat<const float>(bias), address<T>(rounded));
    });
    operands.bias = rounded.raw();
  }
  product.bias = true;
  if (products_.try_run(context, product, operands)) return;
  product.bias = false;
  operands.bias = nullptr;
  products_.run(context, product, operands);
  with_float_type(y.dtype(), [&]<class T> {
    add_bias(current_stream(context), address<const float>(bias), rows_of<T>(y));
  });
}

void CudaBackend::linear_backward_data(Context& context, const Tensor& dy, const PackedWeight& w,
                                       Tensor& dx) {
  const Tensor::Matrix in = dy.matrix(), out = dx.matrix();
  products_.run(context,
                {.m = in.rows,
                 .n = out.cols,
                 .k = in.cols,
                 .input = dy.dtype(),
                 .output = dx.dtype(),
                 .a_row = in.stride,
                 .b_row = out.cols,
                 .c_row = out.stride},
                {.a = in.data, .b = w.plain().raw(), .c = out.data});
}

void CudaBackend::linear_backward_weight(Context& context, const Tensor& dy, const Tensor& x,
                                         Tensor& dw, Tensor& dbias, WriteMode mode_of_dw) {
  const Tensor::Matrix gradient = dy.matrix(), in = x.matrix();
  Product product{.m = gradient.cols,
                  .n = in.cols,
                  .k = gradient.rows,
                  .input = dy.dtype(),
                  .a_transposed = true,
                  .a_row = gradient.stride,
                  .b_row = in.stride,
                  .c_row = in.cols,
                  .accumulate = mode_of_dw == WriteMode::add};
  Operands operands{.a = gradient.data, .b = in.data};
  if (dw.defined()) operands.c = dw.raw();
  if (!dbias.defined()) {
    if (dw.defined()) products_.run(context, product, operands);
    return;
  }
  const cudaStream_t stream = current_stream(context);
  const Tensor parts = context.empty(DType::f32, {column_sum_parts(gradient.rows), gradient.cols});
  const auto add_sums = [&] {
    with_float_type(dy.dtype(), [&]<class T> {
      add_column_sums(stream, rows_of<const T>(dy), address<float>(parts), address<float>(dbias));
    });
  };
  if (!dw.defined()) return add_sums();
  const auto apart = [&, product, operands] {
    products_.run(context, product, operands);
    add_sums();
  };
  // The product would overwrite dbias with its row sums, so they are written to `parts`.
  product.row_sums = true;
  operands.row_sums = address<float>(parts);
  products_.run_or(
      context, product, operands,
      [&] { add_parts(stream, address<float>(parts), 1, gradient.cols, address<float>(dbias)); },
      apart);
}

void CudaBackend::merge_low_rank(Context& context, Tensor& up, const Tensor& down, float scale,
                                 Tensor& w) {
  products_.run(context,
                {.m = w.size(0),
                 .n = w.size(1),
                 .k = up.size(1),
                 .a_row = up.size(1),
                 .b_row = w.size(1),
                 .c_row = w.size(1),
                 .accumulate = true},
                {.a = up.raw(), .b = down.raw(), .c = w.raw(), .alpha = scale});
  check(cudaMemsetAsync(up.raw(), 0, static_cast<std::size_t>(up.elements()) * sizeof(float),
                        current_stream(context)),
        "clearing memory");
}

}  // namespace sortie::trainer::ops::cuda
