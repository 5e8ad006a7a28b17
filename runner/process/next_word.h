// Reading the files of /proc and /sys word by word.
#pragma once

#include <string_view>

namespace sortie::runner {

/// Takes off `text` what stands before the first `separator`, and the separator.
inline std::string_view next_word(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return word;
}

}  // namespace sortie::runner
