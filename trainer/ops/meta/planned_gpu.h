// kPlannedGpu, the meta device that stands for a GPU.
#pragma once

#include "trainer/tensor/device.h"

namespace sortie::trainer::ops {

/// Its ops make the allocations of a GPU's ops; those of {meta, 0} make the CPU's.
inline constexpr Device kPlannedGpu{.kind = DeviceKind::meta, .index = 1};
/// True if the device is a GPU or stands for one.
inline bool is_gpu(Device device) {
  return device.kind == DeviceKind::cuda || device == kPlannedGpu;
}

}  // namespace sortie::trainer::ops
