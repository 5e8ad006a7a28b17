#include "common/base/printable.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>

#include "common/base/utf8.h"

namespace sortie {

bool is_hidden_control(char32_t point) {
  return point == 0x061c || point == 0x200e || point == 0x200f ||
         (point >= 0x2028 && point <= 0x202e) || (point >= 0x2060 && point <= 0x206f) ||
         point == 0xfeff || (point >= 0xfff9 && point <= 0xfffb) ||
         (point >= 0xe0000 && point <= 0xe007f);
}

std::string printable(std::string_view bytes) {
  // Most text is plain: its plain prefix is copied at once.
  const auto is_plain = [](char c) { return (c >= 0x20 && c < 0x7f) || c == '\t'; };
  const auto plain =
      static_cast<std::size_t>(std::ranges::find_if_not(bytes, is_plain) - bytes.begin());
  std::string out(bytes.substr(0, plain));
  bytes.remove_prefix(plain);
  out.reserve(plain + bytes.size());
  while (!bytes.empty()) {
    const auto byte = static_cast<unsigned char>(bytes[0]);
    const char* at = bytes.data();
    std::size_t length = utf8_length(bytes);
    if (length == 0) {
      out += "\xef\xbf\xbd";
      length = 1;
    } else if (byte < 0x20 && byte != '\t') {
      out += '^';
      out += static_cast<char>(byte + 0x40);
    } else if (byte == 0x7f) {
      out += "^?";
    } else if (length == 2 && byte == 0xc2 && static_cast<unsigned char>(bytes[1]) < 0xa0) {
      out += "\xef\xbf\xbd";  // C1 controls: some terminals obey them
    } else if (const char32_t point = take_char(at); is_hidden_control(point)) {
      out += fmt::format("<U+{:04X}>", static_cast<std::uint32_t>(point));
    } else {
      out.append(bytes.substr(0, length));
    }
    bytes.remove_prefix(length);
  }
  return out;
}

std::string printable_lines(std::string_view text) {
  std::string out;
  for (;;) {
    const auto end = text.find('\n');
    out += printable(text.substr(0, end));
    if (end == text.npos) return out;
    out += '\n';
    text.remove_prefix(end + 1);
  }
}

}  // namespace sortie
