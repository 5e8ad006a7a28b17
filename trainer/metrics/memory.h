// Memory of this process and of its host as the kernel counts it.
#pragma once

#include <cstdint>

namespace sortie::trainer {

/// Returns the peak resident size so far (VmHWM) in bytes; 0 if /proc does not report it.
std::int64_t peak_memory_bytes();

/// Returns how many bytes this process can still allocate: the minimum of what the host has
/// available (MemAvailable) and what the limits of its cgroup (v2) and the parent cgroups leave. 0
/// if neither is known.
std::uint64_t available_memory_bytes();

}  // namespace sortie::trainer
