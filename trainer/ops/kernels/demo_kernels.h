// DeMo's loops over the values of a block, for each instruction set. All sets give the same bits,
// so that members with different CPUs compute the same signs: no FMA contraction (CMakeLists.txt).
#pragma once

#include <cstdint>

#include "trainer/ops/isa.h"

namespace sortie::trainer::ops {

/// Elements between rows of a block, whatever the block's size.
inline constexpr std::int64_t kDemoLine = 64;

struct DemoKernels {
  /// c[r][j] = sum over d, in ascending order from 0, of a[r * a_row + d * a_depth] * b[d][j], for
  /// all rows and at least the first `columns` columns. Rows of b and c are kDemoLine apart and
  /// have room for that many values, since further columns may be read and written.
  void (*product)(const float* a, std::int64_t a_row, std::int64_t a_depth, const float* b,
                  float* c, std::int64_t rows, std::int64_t columns, std::int64_t depth);
  /// to[j] += factor * from[j] for kDemoLine elements.
  void (*add_line)(float factor, const float* from, float* to);
  /// Number of values in rows x columns, rows kDemoLine apart, whose bits without the sign are at
  /// least `least`.
  std::int64_t (*count)(const float* values, std::int64_t rows, std::int64_t columns,
                        std::uint32_t least);
  /// x = m = decay m + rate g for n values.
  void (*mix)(float decay, float rate, const float* g, float* m, float* x, std::int64_t n);
  /// w = w - decay w - lr sign(q) for n values; NaN where q is NaN. If copies is not nullptr, also
  /// copies = bf16(w).
  void (*move)(float decay, float lr, const float* q, float* w, std::uint16_t* copies,
               std::int64_t n);
};

/// The kernels of a set that this CPU supports.
const DemoKernels& demo_kernels(Isa isa);

}  // namespace sortie::trainer::ops
