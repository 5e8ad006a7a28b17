#include "trainer/ops/cuda/demo.h"

#include <array>
#include <limits>

#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/tensor_views.h"

namespace sortie::trainer::ops::cuda {
namespace {

const DemoCosines& cosines_of(std::int64_t size) {
  static const auto all = [] {
    std::array<DemoCosines, DemoCosines::kLongest> made{};
    for (int i = 0; i < DemoCosines::kLongest; ++i)
      made[static_cast<std::size_t>(i)] = demo_cosines(i + 1);
    return made;
  }();
  return all.at(static_cast<std::size_t>(size - 1));
}

DemoSide side_of(std::int64_t length, std::int64_t parts) {
  DemoSide side{.parts = static_cast<int>(parts),
                .size = static_cast<int>(length / parts),
                .longer = static_cast<int>(length % parts),
                .cosines = {}};
  side.cosines[0] = cosines_of(side.size);
  if (side.longer > 0) side.cosines[1] = cosines_of(side.size + 1);
  return side;
}

DemoMatrix matrix_of(const DemoBlocks& blocks) {
  SORTIE_CHECK(blocks.count() <= std::numeric_limits<int>::max(), "{} blocks", blocks.count());
  return {.down = side_of(blocks.rows, blocks.down()),
          .across = side_of(blocks.columns, blocks.across()),
          .columns = blocks.columns,
          .top_k = static_cast<int>(blocks.top_k),
          .slots = static_cast<int>(blocks.slots()),
          .block_bytes = static_cast<int>(blocks.block_bytes())};
}

}  // namespace

void CudaBackend::demo_send(Context& context, const DemoSend& step, const DemoBlocks& blocks,
                            const Tensor& grad, Tensor& momentum, Tensor& message) {
  demo_send_blocks(current_stream(context), matrix_of(blocks),
                   {.lr = address<const float>(step.lr),
                    .gate = address<const float>(step.gate),
                    .decay = step.decay,
                    .grad = address<const float>(grad),
                    .momentum = address<float>(momentum),
                    .message = address<std::uint8_t>(message)});
}

void CudaBackend::demo_move(Context& context, const DemoMove& step, const DemoBlocks& blocks,
                            const Tensor& messages, Tensor& w, Tensor& compute) {
  const DemoMatrix matrix = matrix_of(blocks);
  SORTIE_CHECK(messages.size(0) <= std::numeric_limits<int>::max() / matrix.slots,
               "messages of {} members", messages.size(0));
  demo_move_blocks(current_stream(context), matrix,
                   {.lr = address<const float>(step.lr),
                    .gate = address<const float>(step.gate),
                    .weight_decay = step.weight_decay,
                    .messages = address<const std::uint8_t>(messages),
                    .stride = messages.stride(0),
                    .members = static_cast<int>(messages.size(0)),
                    .w = address<float>(w),
                    .compute = address<bf16>(compute)});
}

}  // namespace sortie::trainer::ops::cuda
