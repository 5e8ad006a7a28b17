#include "launcher/ssh/pattern.h"

#include <algorithm>

namespace sortie::launcher::ssh {
namespace {

char lower_case(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

bool matches_pattern(std::string_view text, std::string_view pattern) {
  // Greedy with a single backtracking point: linear in practice, never exponential.
  std::size_t t = 0, p = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() &&
               (pattern[p] == '?' || lower_case(pattern[p]) == lower_case(text[t]))) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool matches_pattern_list(std::string_view text, std::span<const std::string> patterns) {
  bool matched = false;
  for (const std::string& pattern : patterns) {
    if (pattern.starts_with('!')) {
      if (matches_pattern(text, std::string_view(pattern).substr(1))) return false;
    } else if (matches_pattern(text, pattern)) {
      matched = true;
    }
  }
  return matched;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), lower_case);
  return result;
}

}  // namespace sortie::launcher::ssh
