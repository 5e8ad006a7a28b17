// Dropout of rows, for the dropout op and attention. Included by files of this folder only.
#pragma once

#include <algorithm>
#include <cstddef>

#include "trainer/ops/dropout.h"
#include "trainer/ops/kernels/table.h"

namespace sortie::trainer::ops {

/// The generator's state for the elements from `begin` on of sample `b` of the batch. `begin`
/// counts from the start of the whole sample.
DropoutRow dropout_row(const Dropout& dropout, std::int64_t b, std::int64_t begin);

/// Applies dropout from x to y to `n` elements of one dtype. The first is element `begin` of the
/// local part of sample `b`.
inline void drop(const TypedKernels& kernels, std::size_t element_bytes, const Dropout& dropout,
                 std::int64_t b, std::int64_t begin, const void* x, void* y, std::int64_t n) {
  constexpr std::int64_t kRun = std::int64_t{1} << 32;  // the generator's state changes here
  const auto* from = static_cast<const std::byte*>(x);
  auto* to = static_cast<std::byte*>(y);
  begin += dropout.first_element;
  while (n > 0) {
    const std::int64_t here = std::min(n, kRun - begin % kRun);
    kernels.dropout(dropout_row(dropout, b, begin), from, to, here);
    from += static_cast<std::size_t>(here) * element_bytes;
    to += static_cast<std::size_t>(here) * element_bytes;
    begin += here;
    n -= here;
  }
}
/// In place.
inline void drop(const TypedKernels& kernels, std::size_t element_bytes, const Dropout& dropout,
                 std::int64_t b, std::int64_t begin, void* x, std::int64_t n) {
  drop(kernels, element_bytes, dropout, b, begin, x, x, n);
}

}  // namespace sortie::trainer::ops
