// The mounts that this process sees: the text of /proc/self/mountinfo.
#pragma once

#include <string>

namespace sortie::runner {

/// Read once; forked processes inherit it, because on a host with many containers the kernel takes
/// longer to produce this text than to fork. Later mounts are not seen: it is used only to find the
/// cgroups. Empty if it can not be read.
const std::string& own_mounts();

}  // namespace sortie::runner
