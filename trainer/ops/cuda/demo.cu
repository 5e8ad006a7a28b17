// DeMo, one block of threads per block of the matrix. Compiled without contraction to FMA, so that
// the bits are the CPU's.
#include "trainer/ops/cuda/demo.h"

#include "trainer/ops/cuda/demo_choice.h"
#include "trainer/ops/cuda/launch.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kDemoBlocks = 3;  // of a multiprocessor, by their registers

Grid grid_of(const DemoMatrix& matrix) {
  return {.blocks = static_cast<unsigned>(matrix.down.parts * matrix.across.parts),
          .threads = kDemoThreads,
          .shared_bytes = sizeof(DemoMemory)};
}

__global__ void __launch_bounds__(kDemoThreads, kDemoBlocks)
    demo_send_kernel(const DemoMatrix matrix, const DemoSendValues values) {
  if (values.gate[0] == 0.0f) return;
  DemoMemory& memory = *shared_memory<DemoMemory>();
  const DemoPlace place(matrix, memory);
  const float rate = *values.lr * values.gate[1];
  float mixed[kDemoRows][kDemoColumns];  // the momentum before what is sent leaves it
  for_each_of_block([&](int i, int j, int row, int column) {
    mixed[i][j] = 0.0f;
    if (place.contains(row, column)) {
      const std::int64_t at = place.first + row * matrix.columns + column;
      mixed[i][j] = values.decay * values.momentum[at] + rate * values.grad[at];
    }
    memory.values[row * kDemoLine + column] = mixed[i][j];
  });
  __syncthreads();
  transform_block(place, memory);
  const int wanted = min(matrix.top_k, place.rows * place.columns);
  const DemoScale scale = choose_largest(place, wanted, memory);
  std::uint8_t* const message = values.message + std::int64_t{blockIdx.x} * matrix.block_bytes;
  for (int at = static_cast<int>(threadIdx.x); at < matrix.block_bytes; at += kDemoThreads)
    message[at] = message_byte(at, matrix.slots, scale, wanted, memory.choice);
  __syncthreads();
  restore_block(place, memory);
  for_each_of_block([&](int i, int j, int row, int column) {
    if (place.contains(row, column))
      values.momentum[place.first + row * matrix.columns + column] =
          mixed[i][j] - memory.values[row * kDemoLine + column];
  });
}

/// A coefficient of a message.
struct DemoSent {
  int at = -1;  // its element of a block in shared memory; -1 = none is sent
  float value = 0.0f;
};

__device__ __forceinline__ DemoSent read_slot(const std::uint8_t* message, int slot, int slots,
                                              const DemoPlace& place) {
  DemoSent sent;
  const auto code = static_cast<std::int8_t>(message[2 + slots / 2 * 3 + slot]);
  if (slot >= place.rows * place.columns || code == 0) return sent;
  const std::uint8_t* const pair = message + 2 + slot / 2 * 3;
  const int index = slot % 2 == 0 ? pair[0] | (pair[1] & 0xf) << 8 : pair[1] >> 4 | pair[2] << 4;
  if (index >= place.rows * place.columns) __trap();
  const int row = index / place.columns;
  const float scale = demo_float(std::uint32_t{message[0]} << 16 | std::uint32_t{message[1]} << 24);
  sent.at = row * kDemoLine + index - row * place.columns;
  sent.value = scale * static_cast<float>(code);
  return sent;
}

/// memory.values = for each coefficient the mean over the members that sent it, memory.masks =
/// which ones these are. Members are added in their order: the coefficients of one member are
/// different ones, so its threads do not meet. The results are visible to all on return.
__device__ __forceinline__ void mean_of_members(const DemoMatrix& matrix,
                                                const DemoMoveValues& values,
                                                const DemoPlace& place, DemoMemory& memory) {
  unsigned* const senders = memory.senders;
  for_each_of_block([&](int, int, int row, int column) { senders[row * kDemoLine + column] = 0; });
  __syncthreads();
  const int slots = matrix.slots, all = values.members * slots;
  // Each thread reads one slot of some member, and waits for the members before that one.
  for (int begin = 0; begin < all; begin += kDemoThreads) {
    const int mine = begin + static_cast<int>(threadIdx.x), member = mine / slots;
    DemoSent sent;
    if (mine < all)
      sent = read_slot(
          values.messages + member * values.stride + std::int64_t{blockIdx.x} * matrix.block_bytes,
          mine - member * slots, slots, place);
    const int last = (min(begin + kDemoThreads, all) - 1) / slots;
    for (int turn = begin / slots; turn <= last; ++turn) {
      if (turn == member && sent.at >= 0) {
        float& sum = memory.values[sent.at];
        sum = senders[sent.at] == 0 ? sent.value : sum + sent.value;
        ++senders[sent.at];
      }
      __syncthreads();
    }
  }
  for_each_of_block([&](int, int j, int row, int column) {
    const int at = row * kDemoLine + column;
    const unsigned count = senders[at];
    if (count > 0) memory.values[at] = memory.values[at] / static_cast<float>(count);
    const unsigned mask = __ballot_sync(kAllLanes, count > 0);
    if (lane_of_thread() == j) memory.masks[row][j] = mask;
  });
  __syncthreads();
}

__global__ void __launch_bounds__(kDemoThreads, kDemoBlocks)
    demo_move_kernel(const DemoMatrix matrix, const DemoMoveValues values) {
  if (values.gate[0] == 0.0f) return;
  DemoMemory& memory = *shared_memory<DemoMemory>();
  const DemoPlace place(matrix, memory);
  mean_of_members(matrix, values, place, memory);
  restore_block(place, memory);
  const float lr = *values.lr, decay = lr * values.weight_decay;
  for_each_of_block([&](int, int, int row, int column) {
    if (!place.contains(row, column)) return;
    const float q = memory.values[row * kDemoLine + column];
    const float up = q > 0.0f ? 1.0f : q;  // keeps 0 and NaN
    const float sign = q < 0.0f ? -1.0f : up;
    const std::int64_t at = place.first + row * matrix.columns + column;
    const float old = values.w[at];
    const float moved = old - decay * old - lr * sign;
    values.w[at] = moved;
    if (values.compute != nullptr) values.compute[at] = from_float<bf16>(moved);
  });
}

}  // namespace

void demo_send_blocks(cudaStream_t stream, const DemoMatrix& matrix, const DemoSendValues& values) {
  launch(demo_send_kernel, grid_of(matrix), stream, matrix, values);
}

void demo_move_blocks(cudaStream_t stream, const DemoMatrix& matrix, const DemoMoveValues& values) {
  launch(demo_move_kernel, grid_of(matrix), stream, matrix, values);
}

}  // namespace sortie::trainer::ops::cuda
