// What host code tells kernels of tensors: plain values, for both sides. Addresses are the
// device's.
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

}  // namespace sortie::trainer::ops::cuda
