// Variables of this process's environment.
#pragma once

#include <cstdlib>
#include <string>

namespace sortie {

/// The value of a variable; empty if it is not set.
inline std::string environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace sortie
