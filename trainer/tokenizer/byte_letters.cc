#include "trainer/tokenizer/byte_letters.h"

#include <array>

#include "trainer/tokenizer/unicode.h"

namespace sortie::trainer::hf {

char32_t char_of_byte(std::uint8_t byte) {
  // Printable bytes represent themselves. The others become the characters from U+0100 on, in
  // order.
  const auto printable = [](unsigned b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
  };
  if (printable(byte)) return byte;
  char32_t c = 0x100;
  for (unsigned b = 0; b < byte; ++b) c += printable(b) ? 0 : 1;
  return c;
}

std::optional<std::string> bytes_of_token(std::string_view token) {
  static const auto kBytes = [] {
    std::array<int, 0x200> bytes;
    bytes.fill(-1);
    for (int b = 0; b < 256; ++b) bytes[char_of_byte(static_cast<std::uint8_t>(b))] = b;
    return bytes;
  }();
  std::string out;
  const char* const end = token.data() + token.size();
  for (const char* at = token.data(); at < end;) {
    const char32_t c = take_char(at);
    if (c >= kBytes.size() || kBytes[c] < 0) return std::nullopt;
    out += static_cast<char>(kBytes[c]);
  }
  return out;
}

}  // namespace sortie::trainer::hf
