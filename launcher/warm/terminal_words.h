// The protocol of an interactive session over a kept connection: the frames in both directions
// after the answer "ready" to a request of kind terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "launcher/host/terminal_channel.h"

namespace sortie::launcher::warm {

/// Types of frames to the host. The answers are Record::data (its terminal or stdout), error_data
/// (stderr), and as the last record ended or failed.
enum class Word : std::uint8_t {
  input = 2,         // bytes for stdin
  end_of_input = 3,  // end of stdin
  resize = 4,        // columns and rows, two u16, little endian
};
/// Maximum payload of a frame.
inline constexpr std::size_t kMaxWord = 64u << 10;

std::string word(Word type, std::string_view payload = {});
std::string resize_word(WindowSize size);
/// ErrorCode::protocol if it is invalid.
Result<WindowSize> read_resize(std::string_view payload);

}  // namespace sortie::launcher::warm
