// `sortie ps` and `sortie status` as text and JSON.
#pragma once

#include <string>

#include "common/base/result.h"

namespace sortie::launcher {

/// Returns the runs that are alive and the number of runs lost within the last day; with `all`, all
/// runs.
Result<std::string> ps_text(const std::string& log_dir, bool all, bool json);

/// Returns one run with each of its hosts and ranks.
Result<std::string> status_text(const std::string& run, const std::string& log_dir, bool json);

}  // namespace sortie::launcher
