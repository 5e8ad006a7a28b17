// Checks of fills and copies.
#include "trainer/ops/copy.h"

#include "trainer/ops/dispatch.h"

namespace sortie::trainer::ops {

void fill(ExecutionContext& context, double value, Tensor& x) {
  SORTIE_CHECK(x.dense(), "fill of {}", x.shape().to_string());
  if (x.elements() > 0) dispatch<&Backend::fill>(context, value, x);
}

void copy(ExecutionContext& context, const Tensor& from, Tensor& to) {
  SORTIE_CHECK(from.dtype() == to.dtype() && from.shape() == to.shape(), "{} {} to {} {}",
               dtype_name(from.dtype()), from.shape().to_string(), dtype_name(to.dtype()),
               to.shape().to_string());
  if (from.elements() > 0) dispatch<&Backend::copy>(context, from, to);
}

void copy_to_place(ExecutionContext& context, const Tensor& from, const Tensor& place, Tensor& to) {
  const int dims = to.shape().dims();
  bool fits = from.dtype() == to.dtype() && from.shape().dims() == dims && dims >= 2 &&
              from.size(1) <= to.size(1);
  for (int i = 0; fits && i < dims; ++i) fits = i == 1 || from.size(i) == to.size(i);
  SORTIE_CHECK(fits && place.dtype() == DType::i32 && place.elements() > 0, "{} {} in {} {}",
               dtype_name(from.dtype()), from.shape().to_string(), dtype_name(to.dtype()),
               to.shape().to_string());
  if (from.elements() > 0) dispatch<&Backend::copy_to_place>(context, from, place, to);
}

void random_normal(ExecutionContext& context, std::uint64_t key, std::int64_t first, double std_dev,
                   Tensor& x) {
  SORTIE_CHECK(x.dtype() == DType::f32 && x.dense() && first >= 0, "normal numbers {} from {}",
               dtype_name(x.dtype()), first);
  if (x.elements() > 0) dispatch<&Backend::random_normal>(context, key, first, std_dev, x);
}

void accumulate(ExecutionContext& context, const Tensor& from, Tensor& sums) {
  SORTIE_CHECK(from.dtype() == DType::f64 && sums.dtype() == DType::f64 && from.dense() &&
                   sums.dense() && from.elements() == sums.elements(),
               "{} {} to the sums {} {}", dtype_name(from.dtype()), from.shape().to_string(),
               dtype_name(sums.dtype()), sums.shape().to_string());
  dispatch<&Backend::accumulate>(context, from, sums);
}

void copy_bytes_to_host(ExecutionContext& context, const Tensor& from, std::span<std::byte> to) {
  SORTIE_CHECK(from.dense() && to.size() == static_cast<std::size_t>(from.elements()) *
                                                dtype_bytes(from.dtype()),
               "{} {} to {} bytes", dtype_name(from.dtype()), from.shape().to_string(), to.size());
  if (to.empty()) return;
  // A GPU's copy_to_host() itself waits for all streams and the copy, with one wait of the host.
  if (context.device().kind != DeviceKind::cuda) context.synchronize();
  const OpenMemory open(context.device());
  context.backend().copy_to_host(context, from, to);
}

Event begin_copy_of_bytes(ExecutionContext& context, const Tensor& from,
                          const std::shared_ptr<std::byte[]>& to) {
  SORTIE_CHECK(from.dense(), "a copy of the strided {}", from.shape().to_string());
  dispatch<&Backend::copy_to_host_late>(context, from, to);
  return context.record();
}

void copy_bytes_from_host(ExecutionContext& context, std::span<const std::byte> from, Tensor& to) {
  SORTIE_CHECK(to.dense() &&
                   from.size() == static_cast<std::size_t>(to.elements()) * dtype_bytes(to.dtype()),
               "{} bytes to {} {}", from.size(), dtype_name(to.dtype()), to.shape().to_string());
  if (!from.empty()) dispatch<&Backend::copy_from_host>(context, from, to);
}

}  // namespace sortie::trainer::ops

namespace sortie::trainer {

Tensor ExecutionContext::zeros(DType dtype, Shape shape) {
  Tensor tensor = empty(dtype, shape);
  ops::fill(*this, 0.0, tensor);
  return tensor;
}

}  // namespace sortie::trainer
