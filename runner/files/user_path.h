// What a path of the command line means on this host: absolute, or relative to the home folder.
#pragma once

#include <string>

#include "common/base/result.h"

namespace sortie::runner {

/// "/a" stays, "~/a" and "a" become "$HOME/a". ErrorCode::not_found where there is no home folder.
Result<std::string> user_path(const std::string& path);

}  // namespace sortie::runner
