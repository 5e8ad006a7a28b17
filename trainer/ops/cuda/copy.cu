#include "trainer/ops/cuda/copy.h"

#include "trainer/ops/cuda/rows.h"

namespace sortie::trainer::ops::cuda {
namespace {

/// A row is the last dimension, in units. The other three indices are computed from the row's
/// number: at most two divisions per unit, of 32 bits if `narrow`.
template <class Unit>
struct CopyUnits {
  CopyPlan plan;  // sizes and steps in units
  bool narrow;

  template <int N>
  __device__ void at(std::int64_t row, std::int64_t col) const {
    std::int64_t a, b, c;
    if (narrow) {
      const auto at = static_cast<unsigned>(row), inner = static_cast<unsigned>(plan.sizes[2]),
                 middle = static_cast<unsigned>(plan.sizes[1]);
      const unsigned outer = at / inner;
      c = at - outer * inner;
      a = outer / middle;
      b = outer - outer / middle * middle;
    } else {
      const std::int64_t outer = row / plan.sizes[2];
      c = row - outer * plan.sizes[2];
      a = outer / plan.sizes[1];
      b = outer - a * plan.sizes[1];
    }
    const std::int64_t source =
        a * plan.from_steps[0] + b * plan.from_steps[1] + c * plan.from_steps[2];
    std::int64_t target = a * plan.to_steps[0] + b * plan.to_steps[1] + c * plan.to_steps[2];
    if (plan.place != nullptr) target += *plan.place * plan.place_step;
    write_pack(static_cast<Unit*>(plan.to) + target + col,
               read_pack<Unit>(static_cast<const Unit*>(plan.from) + source + col));
  }
};

bool is_dense(const CopyPlan& plan) {
  return plan.sizes[0] == 1 && plan.sizes[1] == 1 && plan.sizes[2] == 1;
}

/// Joins slower dimensions with the fastest one while they are contiguous on both sides.
void join_dimensions(CopyPlan& plan) {
  while (!is_dense(plan) && (plan.sizes[2] == 1 || (plan.from_steps[2] == plan.sizes[3] &&
                                                    plan.to_steps[2] == plan.sizes[3]))) {
    plan.sizes[3] *= plan.sizes[2];
    for (int dim = 2; dim > 0; --dim) {
      plan.sizes[dim] = plan.sizes[dim - 1];
      plan.from_steps[dim] = plan.from_steps[dim - 1];
      plan.to_steps[dim] = plan.to_steps[dim - 1];
    }
    plan.sizes[0] = 1;
  }
}

template <class Unit>
void copy_units(cudaStream_t stream, CopyPlan plan) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(Unit));
  plan.sizes[3] /= kBytes;
  plan.place_step /= kBytes;
  for (int dim = 0; dim < 3; ++dim) {
    plan.from_steps[dim] /= kBytes;
    plan.to_steps[dim] /= kBytes;
  }
  const std::int64_t rows = plan.sizes[0] * plan.sizes[1] * plan.sizes[2];
  for_each_pack<1>(stream, {rows, plan.sizes[3]},
                   CopyUnits<Unit>{plan, rows < (std::int64_t{1} << 31)});
}

}  // namespace

void copy_strided(cudaStream_t stream, CopyPlan plan) {
  join_dimensions(plan);
  if (is_dense(plan) && plan.place == nullptr)
    return check(cudaMemcpyAsync(plan.to, plan.from, static_cast<std::size_t>(plan.sizes[3]),
                                 cudaMemcpyDeviceToDevice, stream),
                 "a copy");
  // The lowest bit of any address or step is the largest unit that divides them all.
  auto bits = reinterpret_cast<std::uintptr_t>(plan.from) |
              reinterpret_cast<std::uintptr_t>(plan.to) |
              static_cast<std::uintptr_t>(plan.sizes[3] | plan.place_step);
  for (int dim = 0; dim < 3; ++dim)
    if (plan.sizes[dim] > 1)
      bits |= static_cast<std::uintptr_t>(plan.from_steps[dim] | plan.to_steps[dim]);
  if (bits % 16 == 0) return copy_units<Pack<std::uint64_t, 2>>(stream, plan);
  if (bits % 8 == 0) return copy_units<std::uint64_t>(stream, plan);
  if (bits % 4 == 0) return copy_units<std::uint32_t>(stream, plan);
  if (bits % 2 == 0) return copy_units<std::uint16_t>(stream, plan);
  copy_units<std::uint8_t>(stream, plan);
}

}  // namespace sortie::trainer::ops::cuda
