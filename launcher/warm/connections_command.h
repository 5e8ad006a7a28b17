// `sortie connections`: lists and closes the connections kept by the background processes of this
// user.
#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"

namespace sortie::launcher::warm {

/// Returns the connections of all builds of sortie as a table, or as JSON (schema
/// sortie/connections/1).
Result<std::string> list_connections(bool json);

/// Closes the connections to `hosts` (empty = all) and returns a text with their number.
Result<std::string> close_connections(const std::vector<std::string>& hosts);

}  // namespace sortie::launcher::warm
