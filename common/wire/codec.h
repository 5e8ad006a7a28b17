// Encodes messages as frames and decodes them. Payloads are protobuf wire format (protozero),
// fields numbered in declaration order from 1. Unknown fields are skipped; missing ones keep their
// defaults.
#pragma once

#include <string>

#include "common/base/result.h"
#include "common/wire/frame.h"
#include "common/wire/message.h"

namespace sortie::wire {

/// Limit on the items in all lists of one message. It keeps the size of a decoded message within
/// about ten times that of its frame.
inline constexpr std::size_t kMaxItems = 1u << 18;

/// Returns the whole frame, header included.
std::string encode(const Message& message);
/// Appends the frame to `bytes`.
void append_frame(std::string& bytes, const Message& message);

/// Fails with ErrorCode::protocol for an unknown type, a malformed payload, a value out of range,
/// or more than kMaxItems items.
Result<Message> decode(const FrameView& frame);

/// Name of the type for logs ("RankExited").
std::string_view message_name(const Message& message);

}  // namespace sortie::wire
