// Converts tensors to kernel arguments. For the host code of this folder.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "trainer/ops/cuda/views.h"
#include "trainer/ops/dropout.h"
#include "trainer/tensor/tensor.h"

namespace sortie::trainer::ops::cuda {

/// The tensor's address on the device; nullptr if it is undefined.
template <class T>
T* address(const Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  SORTIE_CHECK(dtype_of<std::remove_const_t<T>>() == tensor.dtype(), "tensor holds {}",
               dtype_name(tensor.dtype()));
  SORTIE_CHECK(tensor.device().kind == DeviceKind::cuda, "a kernel on the memory of {}",
               tensor.device().to_string());
  return static_cast<T*>(tensor.raw());
}

template <class T>
Rows<T> rows_of(const Tensor& tensor) {
  const Tensor::Matrix matrix = tensor.matrix();
  return {address<T>(tensor), matrix.rows, matrix.cols, matrix.stride};
}

template <class T>
Flat<T> flat(const Tensor& tensor) {
  SORTIE_CHECK(tensor.dense(), "a strided tensor");
  return {address<T>(tensor), tensor.elements()};
}

inline DropoutView dropout_view(const Dropout& dropout) {
  const double threshold = std::floor(static_cast<double>(dropout.probability) * 0x1p32);
  return {.key = dropout.key,
          .first_sample = dropout.first_sample,
          .first_element = dropout.first_element,
          .threshold = static_cast<std::uint32_t>(std::min(4294967295.0, threshold)),
          .factor = 1.0f / (1.0f - dropout.probability),
          .first = address<const std::int64_t>(dropout.first)};
}

/// Calls body.operator()<T>() with the type of activations and weights.
template <class Body>
decltype(auto) with_float_type(DType dtype, const Body& body) {
  if (dtype == DType::bf16) return body.template operator()<bf16>();
  SORTIE_CHECK(dtype == DType::f32, "a product or activation in {}", dtype_name(dtype));
  return body.template operator()<float>();
}

}  // namespace sortie::trainer::ops::cuda
