// DeMo's kernels in the namespace SORTIE_ISA_NAMESPACE, compiled once per instruction set with
// vectors of SORTIE_DEMO_LANES values. Only fixed-width integer types are included, see
// body_math.h.
#include "trainer/ops/kernels/demo_kernels.h"

namespace sortie::trainer::ops {
namespace SORTIE_ISA_NAMESPACE {
namespace {

constexpr std::int64_t kLanes = SORTIE_DEMO_LANES;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

inline Lanes load(const float* from) {
  return *reinterpret_cast<const Lanes*>(from);
}
inline void store(Lanes values, float* to) {
  *reinterpret_cast<Lanes*>(to) = values;
}

/// Computes kRows rows of c, two vectors at a time.
template <int kRows>
inline void product_rows(const float* a, std::int64_t a_row, std::int64_t a_depth, const float* b,
                         float* c, std::int64_t columns, std::int64_t depth) {
  for (std::int64_t at = 0; at < columns; at += 2 * kLanes) {
    Lanes sums[kRows][2] = {};
    for (std::int64_t d = 0; d < depth; ++d) {
      const Lanes first = load(b + d * kDemoLine + at);
      const Lanes second = load(b + d * kDemoLine + at + kLanes);
      for (int r = 0; r < kRows; ++r) {
        const float factor = a[r * a_row + d * a_depth];
        sums[r][0] += factor * first;
        sums[r][1] += factor * second;
      }
    }
    for (int r = 0; r < kRows; ++r) {
      store(sums[r][0], c + r * kDemoLine + at);
      store(sums[r][1], c + r * kDemoLine + at + kLanes);
    }
  }
}

void product(const float* a, std::int64_t a_row, std::int64_t a_depth, const float* b, float* c,
             std::int64_t rows, std::int64_t columns, std::int64_t depth) {
  constexpr int kTogether = 4;
  std::int64_t r = 0;
  for (; r + kTogether <= rows; r += kTogether)
    product_rows<kTogether>(a + r * a_row, a_row, a_depth, b, c + r * kDemoLine, columns, depth);
  for (; r < rows; ++r)
    product_rows<1>(a + r * a_row, a_row, a_depth, b, c + r * kDemoLine, columns, depth);
}

void add_line(float factor, const float* from, float* to) {
  for (std::int64_t at = 0; at < kDemoLine; at += kLanes)
    store(load(to + at) + factor * load(from + at), to + at);
}

std::int64_t count(const float* values, std::int64_t rows, std::int64_t columns,
                   std::uint32_t least) {
  std::uint32_t found = 0;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c) {
      const auto bits = __builtin_bit_cast(std::uint32_t, values[r * kDemoLine + c]) & 0x7fffffffu;
      found += bits >= least ? 1u : 0u;
    }
  return found;
}

void mix(float decay, float rate, const float* g, float* m, float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = m[i] = decay * m[i] + rate * g[i];
}

void move(float decay, float lr, const float* q, float* w, std::uint16_t* copies, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float up = q[i] > 0.0f ? 1.0f : q[i];  // keeps 0 and NaN
    const float sign = q[i] < 0.0f ? -1.0f : up;
    w[i] = w[i] - decay * w[i] - lr * sign;
  }
  if (copies == nullptr) return;
  for (std::int64_t i = 0; i < n; ++i) {  // rounds like class bf16
    const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, w[i]);
    const std::uint32_t even = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const std::uint32_t quiet = (bits >> 16) | 0x40u;
    copies[i] = static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : even);
  }
}

}  // namespace

extern const DemoKernels kDemoKernels;
constexpr DemoKernels kDemoTable = {
    .product = product, .add_line = add_line, .count = count, .mix = mix, .move = move};
const DemoKernels kDemoKernels = kDemoTable;

}  // namespace SORTIE_ISA_NAMESPACE
}  // namespace sortie::trainer::ops
