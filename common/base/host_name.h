// The name of this machine.
#pragma once

#include <unistd.h>

#include <string>

namespace sortie {

/// Returns the kernel's name of this machine (gethostname), which other machines may have, too;
/// `otherwise` if it has none.
inline std::string host_name(const char* otherwise = "") {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : otherwise;
}

}  // namespace sortie
