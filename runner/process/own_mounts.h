// The mounts that this process sees, as the text of /proc/self/mountinfo.
#pragma once

#include <string>

namespace sortie::runner {

/// Read once: forks have it from this process, because making that text takes the kernel longer
/// than a fork where a host has many containers. What is mounted later is not seen; only where the
/// cgroups are is asked of it. Empty where it can not be read.
const std::string& own_mounts();

}  // namespace sortie::runner
