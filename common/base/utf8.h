// Validation and decoding of UTF-8 (Unicode 15, table 3-7). Overlong forms, surrogates and code
// points above U+10FFFF are invalid.
#pragma once

#include <cstddef>
#include <string_view>

namespace sortie {

/// The start of a text: one whole character, or an invalid sequence, and its length.
struct Utf8Sequence {
  std::size_t bytes;
  bool valid;
  bool cut;  // invalid only because the text ends
};

/// Reads the start of `text`, which must not be empty. An invalid sequence is the longest prefix of
/// a valid character (the convention of Python, Rust and the web), at least one byte.
inline Utf8Sequence read_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  if (lead < 0xc2 || lead > 0xf4) return {1, false, false};
  const std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // The range of the second byte excludes overlong forms, surrogates and values over U+10FFFF.
  const unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {i, false, true};
    if (byte(i) < (i == 1 ? low : 0x80) || byte(i) > (i == 1 ? high : 0xbf))
      return {i, false, false};
  }
  return {length, true, false};
}

/// Bytes of the character at the start of `text`; 0 if `text` is empty or starts with invalid
/// UTF-8.
inline std::size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const Utf8Sequence sequence = read_utf8(text);
  return sequence.valid ? sequence.bytes : 0;
}

/// Returns the code point at `at` and moves `at` past it. `at` must point to the beginning of a
/// character of valid UTF-8.
inline char32_t take_char(const char*& at) {
  const auto byte = [&](int i) { return static_cast<char32_t>(static_cast<unsigned char>(at[i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) {
    at += 1;
    return lead;
  }
  if (lead < 0xe0) {
    const char32_t c = (lead & 0x1f) << 6 | (byte(1) & 0x3f);
    at += 2;
    return c;
  }
  if (lead < 0xf0) {
    const char32_t c = (lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    at += 3;
    return c;
  }
  const char32_t c =
      (lead & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
  at += 4;
  return c;
}

}  // namespace sortie
