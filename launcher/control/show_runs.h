// `sortie ps` and `sortie status` as text and JSON.
#pragma once

#include <string>

#include "common/base/result.h"

namespace sortie::launcher {

/// Living runs, and how many were lost within a day; with `all` every run there is.
Result<std::string> ps_text(const std::string& log_dir, bool all, bool json);

/// One run, each of its hosts and ranks.
Result<std::string> status_text(const std::string& run, const std::string& log_dir, bool json);

}  // namespace sortie::launcher
