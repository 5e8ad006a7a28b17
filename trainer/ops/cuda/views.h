// Tensors as kernel arguments: plain values, for host and device code. Addresses are the device's.
#pragma once

#include <cstdint>

#include "trainer/tensor/dtype.h"

namespace sortie::trainer::ops::cuda {

/// A matrix of rows with a stride, in elements.
template <class T>
struct Rows {
  T* data = nullptr;
  std::int64_t rows = 0, cols = 0, stride = 0;
};

/// Dense elements.
template <class T>
struct Flat {
  T* data = nullptr;
  std::int64_t size = 0;
};

/// Dropout (ops/dropout.h) as a kernel argument, for dropout_run.h. An element is kept if its
/// random bits are at least the threshold, and multiplied by the factor 1 / (1 - p).
struct DropoutView {
  std::uint64_t key = 0;
  std::int64_t first_sample = 0, first_element = 0;
  std::uint32_t threshold = 0;  // 0: no dropout
  float factor = 1.0f;
  const std::int64_t* first = nullptr;  // added to first_sample; nullptr = 0
};

}  // namespace sortie::trainer::ops::cuda
