// Extracts one string from a JSON line.
#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"

namespace sortie::trainer {

/// Returns the string at `key` of the object in `line`: a view into `line`, or into `buffer` if it
/// has escapes. If the key occurs more than once, the last occurrence counts. A lone surrogate
/// becomes U+FFFD. Errors say what is wrong, but not in which line of the file.
Result<std::string_view> json_line_string(std::string_view line, std::string_view key,
                                          std::string& buffer);

}  // namespace sortie::trainer
