// Messages to frames and back. Payloads are protobuf wire format (protozero), fields numbered in
// declaration order from 1; unknown fields are skipped, missing ones keep their defaults.
#pragma once

#include <string>

#include "common/base/result.h"
#include "common/wire/frame.h"
#include "common/wire/message.h"

namespace sortie::wire {

/// In all lists of one message: what decode() makes of a frame is then at most some ten times as
/// large as the frame.
inline constexpr std::size_t kMaxItems = 1u << 18;

/// The whole frame, header included.
std::string encode(const Message& message);
/// The same, appended to `bytes`.
void append_frame(std::string& bytes, const Message& message);

/// ErrorCode::protocol for an unknown type, a malformed payload, a value out of range, or more
/// than kMaxItems items.
Result<Message> decode(const FrameView& frame);

/// Name of the type for logs ("RankExited").
std::string_view message_name(const Message& message);

}  // namespace sortie::wire
