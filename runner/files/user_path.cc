#include "runner/files/user_path.h"

#include <cstdlib>

namespace sortie::runner {

Result<std::string> user_path(const std::string& path) {
  if (path.find('\0') != std::string::npos)
    return fail(ErrorCode::usage, "a path holds a NUL character");
  if (path.starts_with('/')) return path;
  const char* home = std::getenv("HOME");
  if (!home || home[0] != '/')
    return fail(ErrorCode::not_found,
                "the user has no home folder (HOME is not set); use an absolute path");
  std::string rest = path == "~" ? "" : path.starts_with("~/") ? path.substr(2) : path;
  if (rest.starts_with('~'))
    return fail(ErrorCode::usage, path + ": homes of other users are not looked up; use its path");
  return rest.empty() ? home : std::string(home) + "/" + rest;
}

}  // namespace sortie::runner
