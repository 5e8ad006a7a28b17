#include "common/wire/frame.h"

#include <fmt/core.h>

#include "common/base/check.h"

namespace sortie::wire {

std::string encode_frame(std::uint8_t type, std::string_view payload) {
  SORTIE_CHECK(payload.size() <= kMaxPayloadBytes, "frame of type {} has {} bytes", type,
               payload.size());
  std::string bytes;
  bytes.reserve(kFrameHeaderBytes + payload.size());
  const auto length = static_cast<std::uint32_t>(payload.size());
  for (int shift = 0; shift < 32; shift += 8)
    bytes.push_back(static_cast<char>((length >> shift) & 0xff));
  bytes.push_back(static_cast<char>(type));
  bytes.append(3, '\0');
  bytes.append(payload);
  return bytes;
}

void FrameDecoder::feed(std::string_view bytes) {
  if (consumed_ == buffer_.size()) {
    // A burst is over: its memory is not kept.
    if (buffer_.capacity() > 16 * 1024 && bytes.size() < 4 * 1024) std::string().swap(buffer_);
    buffer_.clear();
    consumed_ = 0;
  } else if (consumed_ > (64u << 10) && consumed_ > buffer_.size() / 2) {
    buffer_.erase(0, consumed_);
    consumed_ = 0;
  }
  if (!broken_) buffer_.append(bytes);
}

Result<std::optional<Frame>> FrameDecoder::next() {
  if (broken_) return fail(ErrorCode::protocol, "stream already broken");
  const std::size_t available = buffer_.size() - consumed_;
  if (available < kFrameHeaderBytes) return std::nullopt;
  const auto* header = reinterpret_cast<const unsigned char*>(buffer_.data()) + consumed_;
  const std::uint32_t length =
      static_cast<std::uint32_t>(header[0]) | static_cast<std::uint32_t>(header[1]) << 8 |
      static_cast<std::uint32_t>(header[2]) << 16 | static_cast<std::uint32_t>(header[3]) << 24;
  if (header[5] != 0 || header[6] != 0 || header[7] != 0) {
    broken_ = true;
    return fail(ErrorCode::protocol,
                "bytes received are no Sortie frame (reserved header bytes are not zero)");
  }
  if (length > max_payload_) {
    broken_ = true;
    return fail(ErrorCode::protocol,
                fmt::format("frame of {} bytes announced, more than the limit of {}", length,
                            max_payload_));
  }
  if (available < kFrameHeaderBytes + length) return std::nullopt;
  Frame frame{header[4], buffer_.substr(consumed_ + kFrameHeaderBytes, length)};
  consumed_ += kFrameHeaderBytes + length;
  return frame;
}

}  // namespace sortie::wire
