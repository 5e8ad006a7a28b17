// DeMo's loops over the values of a block for each instruction set; all give the same bits, so
// that members with other CPUs take the same signs: nothing is contracted (CMakeLists.txt).
#pragma once

#include <cstdint>

#include "trainer/ops/isa.h"

namespace sortie::trainer::ops {

/// Elements from one row of a block to the next, whatever the block's size.
inline constexpr std::int64_t kDemoLine = 64;

struct DemoKernels {
  /// c[r][j] = sum over d of a[r * a_row + d * a_depth] * b[d][j], upwards from 0, for all rows and
  /// the first `columns` j, and some behind them. Rows of b and c are kDemoLine apart, and have
  /// room for so many values.
  void (*product)(const float* a, std::int64_t a_row, std::int64_t a_depth, const float* b,
                  float* c, std::int64_t rows, std::int64_t columns, std::int64_t depth);
  /// to[j] += factor * from[j] for kDemoLine elements.
  void (*add_line)(float factor, const float* from, float* to);
  /// How many of rows x columns values, rows kDemoLine apart, have bits of at least `least` but for
  /// the sign.
  std::int64_t (*count)(const float* values, std::int64_t rows, std::int64_t columns,
                        std::uint32_t least);
  /// x = m = decay m + rate g for n values.
  void (*mix)(float decay, float rate, const float* g, float* m, float* x, std::int64_t n);
  /// w = w - decay w - lr sign(q) for n values, NaN where q is; where copies is not null, that as
  /// bf16.
  void (*move)(float decay, float lr, const float* q, float* w, std::uint16_t* copies,
               std::int64_t n);
};

/// For a set that this CPU has.
const DemoKernels& demo_kernels(Isa isa);

}  // namespace sortie::trainer::ops
