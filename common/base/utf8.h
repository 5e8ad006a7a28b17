// What is well-formed UTF-8 (Unicode 15, table 3-7): no overlong forms, no surrogates, nothing
// above U+10FFFF.
#pragma once

#include <cstddef>
#include <string_view>

namespace sortie {

/// What the bytes at the front of a text are: a whole character, or a bad run of so many bytes.
struct Utf8Sequence {
  std::size_t bytes;
  bool valid;
  bool cut;  // bad only because the text ends
};

/// Of a text that is not empty. A bad run is the longest one that begins a character (as Python,
/// Rust and the web count).
inline Utf8Sequence read_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  if (lead < 0xc2 || lead > 0xf4) return {1, false, false};
  const std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // The second byte is what excludes overlong forms, surrogates and values over U+10FFFF.
  const unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {i, false, true};
    if (byte(i) < (i == 1 ? low : 0x80) || byte(i) > (i == 1 ? high : 0xbf))
      return {i, false, false};
  }
  return {length, true, false};
}

/// Bytes of the character at the front of `text`; 0 when it is empty or no UTF-8.
inline std::size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const Utf8Sequence sequence = read_utf8(text);
  return sequence.valid ? sequence.bytes : 0;
}

}  // namespace sortie
