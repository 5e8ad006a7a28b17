#include "launcher/warm/terminal_words.h"

#include <algorithm>

#include "common/wire/frame.h"

namespace sortie::launcher::warm {

std::string word(Word type, std::string_view payload) {
  return wire::encode_frame(static_cast<std::uint8_t>(type), payload);
}

std::string resize_word(WindowSize size) {
  std::string payload;
  for (const int number : {size.columns, size.rows}) {
    const auto value = static_cast<std::uint16_t>(std::clamp(number, 0, 0xffff));
    payload.push_back(static_cast<char>(value & 0xff));
    payload.push_back(static_cast<char>(value >> 8));
  }
  return word(Word::resize, payload);
}

Result<WindowSize> read_resize(std::string_view payload) {
  if (payload.size() != 4)
    return fail(ErrorCode::protocol, "warm connections: no size of a window");
  const auto number = [&](std::size_t at) {
    return static_cast<unsigned char>(payload[at]) | static_cast<unsigned char>(payload[at + 1])
                                                         << 8;
  };
  return WindowSize{number(0), number(2)};
}

}  // namespace sortie::launcher::warm
