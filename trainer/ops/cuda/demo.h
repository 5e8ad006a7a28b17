// Kernels of DeMo (ops/demo.h). They have the bits of the CPU's ops.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "trainer/ops/demo_values.h"
#include "trainer/tensor/dtype.h"

namespace sortie::trainer::ops::cuda {

/// A side of a matrix in parts (DemoBlocks): the first `longer` have size + 1 values, the others
/// `size`.
struct DemoSide {
  int parts = 1, size = 1, longer = 0;
  DemoCosines cosines[2];  // of parts with `size`, and with size + 1 values if there are any
};

/// A matrix in blocks, and the sizes of a block's message.
struct DemoMatrix {
  DemoSide down, across;
  std::int64_t columns = 1;
  int top_k = 0, slots = 0, block_bytes = 0;
};

/// Addresses of demo_send(); grad and momentum are [rows, columns].
struct DemoSendValues {
  const float *lr = nullptr, *gate = nullptr;
  float decay = 0.0f;
  const float* grad = nullptr;
  float* momentum = nullptr;
  std::uint8_t* message = nullptr;
};
void demo_send_blocks(cudaStream_t stream, const DemoMatrix& matrix, const DemoSendValues& values);

/// Addresses of demo_move(); w and compute are [rows, columns], compute may be nullptr.
struct DemoMoveValues {
  const float *lr = nullptr, *gate = nullptr;
  float weight_decay = 0.0f;
  const std::uint8_t* messages = nullptr;
  std::int64_t stride = 0;  // bytes between the messages of two members
  int members = 0;
  float* w = nullptr;
  bf16* compute = nullptr;
};
void demo_move_blocks(cudaStream_t stream, const DemoMatrix& matrix, const DemoMoveValues& values);

}  // namespace sortie::trainer::ops::cuda
