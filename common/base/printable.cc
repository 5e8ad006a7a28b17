#include "common/base/printable.h"

#include <fmt/core.h>

#include <algorithm>

#include "common/base/utf8.h"

namespace sortie {
namespace {

/// Code point of the well-formed sequence of `length` bytes at the start of `s`.
unsigned code_point(std::string_view s, std::size_t length) {
  constexpr unsigned kFirstBits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
  unsigned value = static_cast<unsigned char>(s[0]) & kFirstBits[length];
  for (std::size_t i = 1; i < length; ++i)
    value = value << 6 | (static_cast<unsigned char>(s[i]) & 0x3fu);
  return value;
}

/// Characters that change how the text around them is shown: direction marks, embeddings, overrides
/// and isolates, line separators, invisible operators, tags. They could make a line look like a
/// different one.
bool is_hidden_control(unsigned point) {
  return point == 0x061c || point == 0x200e || point == 0x200f ||
         (point >= 0x2028 && point <= 0x202e) || (point >= 0x2060 && point <= 0x206f) ||
         point == 0xfeff || (point >= 0xfff9 && point <= 0xfffb) ||
         (point >= 0xe0000 && point <= 0xe007f);
}

}  // namespace

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
    } else if (const unsigned point = code_point(bytes, length); is_hidden_control(point)) {
      out += fmt::format("<U+{:04X}>", point);
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
