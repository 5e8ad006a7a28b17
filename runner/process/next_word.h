// Splits the text of /proc and /sys files into words.
#pragma once

#include <string_view>

namespace sortie::runner {

/// Returns the text before the first `separator`; removes it and the separator from `text`.
inline std::string_view next_word(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return word;
}

}  // namespace sortie::runner
