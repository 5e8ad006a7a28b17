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

/// A frame within a buffer that the caller owns. Non-owning.
struct FrameView {
  std::uint8_t type = 0;
  std::string_view payload;
};

struct Frame {
  std::uint8_t type = 0;
  std::string payload;

  operator FrameView() const { return {type, payload}; }
};

/// Appends a header without a length. Append the payload next, then call close_frame() with the
/// returned value.
std::size_t open_frame(std::string& bytes, std::uint8_t type);
/// Fills in the length. SORTIE_CHECKs that the payload is within kMaxPayloadBytes.
void close_frame(std::string& bytes, std::size_t opened);

/// Returns header and payload as bytes to send.
std::string encode_frame(std::uint8_t type, std::string_view payload);

/// Parses bytes that are exactly one frame. Fails with ErrorCode::protocol if they are not.
Result<FrameView> view_frame(std::string_view bytes);

/// Incremental decoder. Memory is bounded by one frame: only bytes of the frame that is being
/// received are buffered, and a length over the limit is an error before its payload is stored.
/// Errors are permanent, because the start of the next frame is then unknown.
class FrameDecoder {
 public:
  /// `max_payload` may be lowered for a peer that never sends large frames.
  explicit FrameDecoder(std::size_t max_payload = kMaxPayloadBytes) : max_payload_(max_payload) {}

  /// Appends received bytes. Call next() until it returns nullopt before feeding more.
  void feed(std::string_view bytes);
  /// Returns a whole frame, nullopt (more bytes needed), or ErrorCode::protocol.
  Result<std::optional<Frame>> next();
  /// True if no partial frame is buffered, so that the stream may end here.
  bool at_border() const { return buffer_.size() == consumed_; }

 private:
  std::size_t max_payload_;
  std::string buffer_;
  std::size_t consumed_ = 0;
  bool broken_ = false;
};

}  // namespace sortie::wire
