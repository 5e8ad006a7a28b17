// The meta device that stands for a GPU.
#pragma once

#include "trainer/tensor/device.h"

namespace sortie::trainer::ops {

/// Its ops allocate what a GPU's do; those of {meta, 0} what the CPU's do.
inline constexpr Device kPlannedGpu{.kind = DeviceKind::meta, .index = 1};
/// Whether a device's ops are those of a GPU, or stand for them.
inline bool is_gpu(Device device) {
  return device.kind == DeviceKind::cuda || device == kPlannedGpu;
}

}  // namespace sortie::trainer::ops
