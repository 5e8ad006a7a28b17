// Error messages of several hosts, each distinct one once.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"

namespace sortie::launcher {

/// One line per distinct error, in the order of their first hosts, with folded host names, such as
/// "h[03-05]: connect: Connection refused". No newline at the end. `errors`: {host, its error}.
std::string fold_errors(const std::vector<std::pair<std::string, Error>>& errors);

}  // namespace sortie::launcher
