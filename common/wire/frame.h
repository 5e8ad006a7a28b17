// Framing of the launcher-runner and runner-helper streams; grammar in README.md.
// A frame is: u32 LE payload length, u8 message type, 3 zero bytes, payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace sortie::wire {

inline constexpr std::size_t kFrameHeaderBytes = 8;
inline constexpr std::size_t kMaxPayloadBytes = 16u << 20;

/// A frame within bytes that somebody else keeps.
struct FrameView {
  std::uint8_t type = 0;
  std::string_view payload;
};

struct Frame {
  std::uint8_t type = 0;
  std::string payload;

  operator FrameView() const { return {type, payload}; }
};

/// Appends a header whose length close_frame() fills in, once the payload has been appended too.
/// Returns what close_frame() wants to know.
std::size_t open_frame(std::string& bytes, std::uint8_t type);
/// SORTIE_CHECKs that the payload is within kMaxPayloadBytes.
void close_frame(std::string& bytes, std::size_t opened);

/// Header and payload as bytes to send.
std::string encode_frame(std::uint8_t type, std::string_view payload);

/// Bytes that are one whole frame and nothing else. ErrorCode::protocol when they are not.
Result<FrameView> view_frame(std::string_view bytes);

/// Incremental decoder. Memory is bounded by one frame: bytes are only buffered for the frame that
/// is being received, and a length beyond the limit is an error before any of it is stored. After
/// an error the decoder stays in error: the stream has no way back to a frame border.
class FrameDecoder {
 public:
  /// `max_payload` may be lowered for a peer that has no business sending large frames.
  explicit FrameDecoder(std::size_t max_payload = kMaxPayloadBytes) : max_payload_(max_payload) {}

  /// Appends received bytes. Call next() until it gives nothing before feeding more.
  void feed(std::string_view bytes);
  /// A whole frame, nothing (more bytes needed), or ErrorCode::protocol.
  Result<std::optional<Frame>> next();
  /// True when the stream may end here (no partial frame).
  bool at_border() const { return buffer_.size() == consumed_; }

 private:
  std::size_t max_payload_;
  std::string buffer_;
  std::size_t consumed_ = 0;
  bool broken_ = false;
};

}  // namespace sortie::wire
