// A person's session over a connection that is kept: what follows the answer "ready" to a request
// of that kind, as frames both ways.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "launcher/host/terminal_channel.h"

namespace sortie::launcher::warm {

/// Towards the host. Back come Record::data (its terminal, or stdout), error_data (stderr), and
/// ended or failed, which is the last one.
enum class Word : std::uint8_t {
  input = 2,         // bytes for stdin
  end_of_input = 3,  // no more of them come
  resize = 4,        // columns and rows, two u16, little endian
};
/// Of one frame.
inline constexpr std::size_t kMaxWord = 64u << 10;

std::string word(Word type, std::string_view payload = {});
std::string resize_word(WindowSize size);
/// ErrorCode::protocol when it is none.
Result<WindowSize> read_resize(std::string_view payload);

}  // namespace sortie::launcher::warm
