// Memory of this process as the kernel counts it.
#pragma once

#include <cstdint>

namespace sortie::trainer {

/// Highest resident size so far (VmHWM), in bytes; 0 where /proc does not tell.
std::int64_t peak_memory_bytes();

}  // namespace sortie::trainer
