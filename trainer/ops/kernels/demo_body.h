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

/// kRows rows of c, two vectors of them at a time.
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

}  // namespace

extern const DemoKernels kDemoKernels;
constexpr DemoKernels kDemoTable = {.product = product, .add_line = add_line};
const DemoKernels kDemoKernels = kDemoTable;

}  // namespace SORTIE_ISA_NAMESPACE
}  // namespace sortie::trainer::ops
