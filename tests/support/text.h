// Predicates on texts for tests.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <string_view>

namespace sortie::test {

inline bool has(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

/// Same as has(), and prints both texts if the result is false.
inline bool contains(const std::string& text, const std::string& part) {
  const bool found = has(text, part);
  if (!found) MESSAGE("'" << text << "' does not contain '" << part << "'");
  return found;
}

inline int count_of(std::string_view text, std::string_view part) {
  int count = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace sortie::test
