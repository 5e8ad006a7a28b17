// Cuts texts into lines and items.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace sortie {

/// Removes the first line from `text` and returns it without its newline. The last line needs none.
inline std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

/// Returns the parts between separators, also empty ones: three for "a,,b", one for "".
inline std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    if (at == text.npos) return parts;
    text.remove_prefix(at + 1);
  }
}

/// The same without empty parts: two for "a,,b", none for "".
inline std::vector<std::string> split_filled(std::string_view text, char separator) {
  std::vector<std::string> parts = split(text, separator);
  std::erase(parts, "");
  return parts;
}

}  // namespace sortie
