// `sortie connections`: what the background processes of this user keep.
#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"

namespace sortie::launcher::warm {

/// A table, or JSON (schema sortie/connections/1). Of all builds of sortie.
Result<std::string> list_connections(bool json);

/// Closes those to `hosts` (all of them where none is named) and says how many there were.
Result<std::string> close_connections(const std::vector<std::string>& hosts);

}  // namespace sortie::launcher::warm
