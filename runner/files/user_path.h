// Resolves a path of the command line on this host: absolute, or relative to the home folder.
#pragma once

#include <string>

#include "common/base/result.h"

namespace sortie::runner {

/// Returns "/a" unchanged, and "$HOME/a" for "~/a" and "a". ErrorCode::not_found: there is no home
/// folder. ErrorCode::usage: a NUL character, or another user's home ("~name").
Result<std::string> user_path(const std::string& path);

}  // namespace sortie::runner
