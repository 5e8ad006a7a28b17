// The one string of a JSON line that is wanted.
#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"

namespace sortie::trainer {

/// The string at `key` of the object in `line`: a view into `line`, or into `buffer` when it has
/// escapes. Of equal keys the last counts, half a surrogate pair becomes U+FFFD. Errors say what is
/// wrong, without the place of the line.
Result<std::string_view> json_line_string(std::string_view line, std::string_view key,
                                          std::string& buffer);

}  // namespace sortie::trainer
