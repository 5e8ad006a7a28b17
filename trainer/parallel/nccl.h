// Collectives between NVIDIA GPUs; part of the device module.
#pragma once

#include <string>

#include "trainer/parallel/device_group.h"

namespace sortie::trainer {

/// Version of the loaded library: "2.28.9".
std::string nccl_version();

/// The instance of this process; never destroyed.
DeviceGroups& nccl_groups();

}  // namespace sortie::trainer
