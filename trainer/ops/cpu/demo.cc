// DeMo over threads, one block at a time. Compiled without FMA, like all code that it calls, so
// that all members compute the same signs, whatever CPUs they have.
#include <algorithm>
#include <array>
#include <bit>

#include "trainer/ops/cpu/cpu_backend.h"
#include "trainer/ops/cpu/demo_block.h"

namespace sortie::trainer::ops {

namespace baseline {
extern const DemoKernels kDemoKernels;
}
namespace avx2 {
extern const DemoKernels kDemoKernels;
}
namespace avx512 {
extern const DemoKernels kDemoKernels;
}

const DemoKernels& demo_kernels(Isa isa) {
  return isa == Isa::avx512 ? avx512::kDemoKernels
         : isa == Isa::avx2 ? avx2::kDemoKernels
                            : baseline::kDemoKernels;
}

namespace {

/// The position of a block in its matrix.
struct Place {
  std::int64_t rows, columns, first;  // first: first element; rows are blocks.columns apart
};

Place place_of(const DemoBlocks& blocks, std::int64_t number) {
  const std::int64_t down = blocks.down(), across = blocks.across();
  const std::int64_t y = number / across, x = number % across;
  const std::int64_t row = DemoBlocks::begin_of(blocks.rows, down, y);
  const std::int64_t column = DemoBlocks::begin_of(blocks.columns, across, x);
  return {DemoBlocks::begin_of(blocks.rows, down, y + 1) - row,
          DemoBlocks::begin_of(blocks.columns, across, x + 1) - column,
          row * blocks.columns + column};
}

/// Computes the mean of each coefficient over the members that sent it, in row-major order. Returns
/// the number of coefficients.
std::size_t mean_of(const DemoBlock& block, const DemoBlocks& blocks, const Tensor& messages,
                    std::int64_t number, std::span<DemoCoefficient> mean) {
  std::array<float, kDemoElements> sums;  // valid where a bit of `columns` is set
  std::array<std::uint32_t, kDemoElements> members;
  std::array<std::uint64_t, kDemoLine> columns{};  // a bit mask per row
  std::array<DemoCoefficient, kDemoElements> sent;
  const std::int64_t bytes = blocks.block_bytes();
  for (std::int64_t member = 0; member < messages.size(0); ++member) {
    const std::uint8_t* const message =
        messages.data<std::uint8_t>() + member * messages.stride(0) + number * bytes;
    const std::size_t count =
        read_demo_message(block, {message, static_cast<std::size_t>(bytes)}, sent);
    for (const DemoCoefficient& one : std::span(sent).first(count)) {
      const auto at = static_cast<std::size_t>(one.row * kDemoLine + one.column);
      const std::uint64_t bit = std::uint64_t{1} << one.column;
      const bool first = (columns[one.row] & bit) == 0;
      columns[one.row] |= bit;
      sums[at] = first ? one.value : sums[at] + one.value;
      members[at] = first ? 1 : members[at] + 1;
    }
  }
  std::size_t count = 0;
  for (std::size_t row = 0; row < columns.size(); ++row)
    for (std::uint64_t left = columns[row]; left != 0; left &= left - 1) {
      const auto column = static_cast<std::size_t>(std::countr_zero(left));
      const std::size_t at = row * kDemoLine + column;
      mean[count++] = {static_cast<std::uint16_t>(row), static_cast<std::uint16_t>(column),
                       sums[at] / static_cast<float>(members[at])};
    }
  return count;
}

}  // namespace

void CpuBackend::demo_send(ExecutionContext& context, const DemoSend& step,
                           const DemoBlocks& blocks, const Tensor& grad, Tensor& momentum,
                           Tensor& message) {
  const float* const gate = step.gate.data<float>();
  if (gate[0] == 0.0f) return;
  const float rate = *step.lr.data<float>() * gate[1];
  const DemoKernels& kernels = demo_kernels(isa_of(context));
  const float* const gradients = grad.data<float>();
  float* const moments = momentum.data<float>();
  std::uint8_t* const to = message.data<std::uint8_t>();
  const std::int64_t bytes = blocks.block_bytes(), line = blocks.columns;
  parallel_tasks(context, blocks.count(), [&](std::int64_t number, int) {
    const Place place = place_of(blocks, number);
    const DemoBlock block(kernels, place.rows, place.columns);
    DemoRoom room;
    for (std::int64_t r = 0; r < place.rows; ++r) {
      float* const m = moments + place.first + r * line;
      const float* const g = gradients + place.first + r * line;
      float* const x = room.values + r * kDemoLine;
      kernels.mix(step.decay, rate, g, m, x, place.columns);
      std::fill(x + place.columns, x + kDemoLine, 0.0f);
    }
    block.transform(room);
    std::array<DemoCoefficient, kDemoElements> room_for_all;
    const auto chosen =
        std::span(room_for_all)
            .first(static_cast<std::size_t>(std::min(blocks.top_k, block.elements())));
    block.choose(room, chosen);
    write_demo_message(block, chosen, {to + number * bytes, static_cast<std::size_t>(bytes)});
    block.restore(chosen, room);
    for (std::int64_t r = 0; r < place.rows; ++r) {
      float* const m = moments + place.first + r * line;
      const float* const x = room.values + r * kDemoLine;
      for (std::int64_t c = 0; c < place.columns; ++c) m[c] -= x[c];
    }
  });
  context.poll();
}

void CpuBackend::demo_move(ExecutionContext& context, const DemoMove& step,
                           const DemoBlocks& blocks, const Tensor& messages, Tensor& w,
                           Tensor& compute) {
  if (step.gate.data<float>()[0] == 0.0f) return;
  const DemoKernels& kernels = demo_kernels(isa_of(context));
  float* const weights = w.data<float>();
  std::uint16_t* const copies = compute.defined() ? &compute.data<bf16>()->bits : nullptr;
  const std::int64_t line = blocks.columns;
  const float lr = *step.lr.data<float>(), decay = lr * step.weight_decay;
  parallel_tasks(context, blocks.count(), [&](std::int64_t number, int) {
    const Place place = place_of(blocks, number);
    const DemoBlock block(kernels, place.rows, place.columns);
    DemoRoom room;
    std::array<DemoCoefficient, kDemoElements> mean;
    const std::size_t count = mean_of(block, blocks, messages, number, mean);
    block.restore(std::span(mean).first(count), room);
    for (std::int64_t r = 0; r < place.rows; ++r) {
      const std::int64_t first = place.first + r * line;
      const float* const q = room.values + r * kDemoLine;
      kernels.move(decay, lr, q, weights + first, copies == nullptr ? nullptr : copies + first,
                   place.columns);
    }
  });
  context.poll();
}

}  // namespace sortie::trainer::ops
