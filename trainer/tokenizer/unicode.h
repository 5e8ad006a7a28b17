// UTF-8, and the classes of code points that pre-tokenizers distinguish.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/utf8.h"

namespace sortie::trainer {

/// The character classes of the patterns. Each code point has exactly one.
enum class CharClass : std::uint8_t {
  other = 0,   // none of the others: control, format, unassigned
  letter = 1,  // \p{Lm}, \p{Lo}: neither upper nor lower case
  number = 2,  // \p{N}
  space = 3,   // \s
  mark = 4,    // \p{M}
  upper = 5,   // \p{Lu}, \p{Lt}
  lower = 6,   // \p{Ll}
  symbol = 7,  // \p{P}, \p{S}
};

/// The flags of all code points, as defined by the `tokenizers` package.
class UnicodeFlags {
 public:
  static const UnicodeFlags& get();

  CharClass char_class(char32_t c) const { return static_cast<CharClass>(flags(c) & 7); }
  /// \w, for the word boundaries around added tokens.
  bool is_word(char32_t c) const { return (flags(c) & 8) != 0; }
  /// Whether NFC leaves the code point unchanged, whatever its neighbours are.
  bool is_inert(char32_t c) const { return (flags(c) & 16) == 0; }

 private:
  UnicodeFlags();
  std::uint8_t flags(char32_t c) const {
    return blocks_[std::size_t{block_of_[c >> 8]} * 256 + (c & 255)];
  }

  static constexpr std::size_t kBlocks = 0x110000 / 256;
  std::array<std::uint16_t, kBlocks> block_of_{};
  std::vector<std::uint8_t> blocks_;
};

/// Returns the length of a character whose first byte is `lead`.
constexpr std::size_t char_bytes(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

void append_utf8(std::string& out, char32_t c);

inline constexpr std::string_view kReplacementChar = "\xef\xbf\xbd";  // U+FFFD

/// Returns the length of the longest prefix of `text` that is valid UTF-8.
std::size_t valid_utf8_prefix(std::string_view text);

/// Returns `text` itself if it is valid UTF-8. Otherwise returns a copy in `buffer` with U+FFFD in
/// place of each longest run of bytes that begins a character without completing it, and of every
/// other invalid byte (as in Python, Rust and the web).
std::string_view repair_utf8(std::string_view text, std::string& buffer);

/// Returns the number of bytes (0 to 3) at the end of `text` that begin a character which more
/// bytes could complete.
std::size_t incomplete_utf8_suffix(std::string_view text);

/// Returns the first `most` bytes of `text`, without a character that this would cut in two.
std::string_view utf8_prefix(std::string_view text, std::size_t most);

}  // namespace sortie::trainer
