// What went wrong on several hosts, each reason once.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"

namespace sortie::launcher {

/// One line per distinct error in the order of their first hosts, hosts folded:
/// "h[03-05]: connect: Connection refused; ...". `errors`: {host, its error}.
std::string fold_errors(const std::vector<std::pair<std::string, Error>>& errors);

}  // namespace sortie::launcher
