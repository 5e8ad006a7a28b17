// Parsing from the front of a text.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace sortie::health {

/// Removes the prefix `front` from `text`. Returns false, with `text` unchanged, if it is missing.
inline bool take(std::string_view& text, std::string_view front) {
  if (!text.starts_with(front)) return false;
  text.remove_prefix(front.size());
  return true;
}

/// Removes and returns the text before `end`, and removes `end`. Returns nullopt, with `text`
/// unchanged, if `end` is missing.
inline std::optional<std::string_view> take_until(std::string_view& text, std::string_view end) {
  const std::size_t at = text.find(end);
  if (at == text.npos) return std::nullopt;
  const std::string_view taken = text.substr(0, at);
  text.remove_prefix(at + end.size());
  return taken;
}

/// Removes and returns an unsigned number. Returns nullopt, with `text` unchanged, if there is none
/// or it does not fit.
template <class Number>
std::optional<Number> take_number(std::string_view& text, int base = 10) {
  Number number{};
  if (text.starts_with('-')) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

}  // namespace sortie::health
