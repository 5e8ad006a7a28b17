// Whether a text is a number, such as the name of a process in /proc.
#pragma once

#include <string_view>

namespace sortie {

/// Whether the text is one or more of the digits 0 to 9, and nothing else.
inline bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

}  // namespace sortie
