// Collectives between NVIDIA GPUs; part of the device module.
#pragma once

#include "trainer/parallel/device_group.h"

namespace sortie::trainer {

/// The instance of this process; never destroyed.
DeviceGroups& nccl_groups();

}  // namespace sortie::trainer
