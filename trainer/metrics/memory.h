// Memory of this process and of its host as the kernel counts it.
#pragma once

#include <cstdint>

namespace sortie::trainer {

/// Highest resident size so far (VmHWM), in bytes; 0 where /proc does not tell.
std::int64_t peak_memory_bytes();

/// What this process can still take: of the host (MemAvailable), and of its cgroup (v2) and those
/// around it where they have limits; 0 where neither is known.
std::uint64_t available_memory_bytes();

}  // namespace sortie::trainer
