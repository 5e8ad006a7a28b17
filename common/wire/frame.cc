#include "common/wire/frame.h"

#include <fmt/core.h>

#include "common/base/check.h"

namespace sortie::wire {

namespace {

struct Header {
  std::uint32_t length = 0;
  std::uint8_t type = 0;
};

/// Reads the kFrameHeaderBytes at `bytes`.
Result<Header> read_header(const char* bytes, std::size_t max_payload) {
  const auto* header = reinterpret_cast<const unsigned char*>(bytes);
  const std::uint32_t length =
      static_cast<std::uint32_t>(header[0]) | static_cast<std::uint32_t>(header[1]) << 8 |
      static_cast<std::uint32_t>(header[2]) << 16 | static_cast<std::uint32_t>(header[3]) << 24;
  if (header[5] != 0 || header[6] != 0 || header[7] != 0)
    return fail(ErrorCode::protocol,
                "bytes received are no Sortie frame (reserved header bytes are not zero)");
  if (length > max_payload)
    return fail(
        ErrorCode::protocol,
        fmt::format("frame of {} bytes announced, more than the limit of {}", length, max_payload));
  return Header{length, header[4]};
}

}  // namespace

std::size_t open_frame(std::string& bytes, std::uint8_t type) {
  const std::size_t opened = bytes.size();
  bytes.append(kFrameHeaderBytes, '\0');
  bytes[opened + 4] = static_cast<char>(type);
  return opened;
}

void close_frame(std::string& bytes, std::size_t opened) {
  const std::size_t length = bytes.size() - opened - kFrameHeaderBytes;
  SORTIE_CHECK(length <= kMaxPayloadBytes, "a frame has {} bytes", length);
  for (std::size_t i = 0; i < 4; ++i)
    bytes[opened + i] = static_cast<char>((length >> (8 * i)) & 0xff);
}

std::string encode_frame(std::uint8_t type, std::string_view payload) {
  std::string bytes;
  bytes.reserve(kFrameHeaderBytes + payload.size());
  const std::size_t opened = open_frame(bytes, type);
  bytes.append(payload);
  close_frame(bytes, opened);
  return bytes;
}

Result<FrameView> view_frame(std::string_view bytes) {
  if (bytes.size() < kFrameHeaderBytes)
    return fail(ErrorCode::protocol, "bytes received are less than a frame");
  SORTIE_ASSIGN_OR_RETURN(const Header header, read_header(bytes.data(), kMaxPayloadBytes));
  const std::string_view payload = bytes.substr(kFrameHeaderBytes);
  if (payload.size() != header.length)
    return fail(ErrorCode::protocol, "bytes received are not one frame");
  return FrameView{header.type, payload};
}

void FrameDecoder::feed(std::string_view bytes) {
  if (consumed_ == buffer_.size()) {
    // Release the memory of a burst of large frames.
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
  const auto header = read_header(buffer_.data() + consumed_, max_payload_);
  if (!header) {
    broken_ = true;
    return std::unexpected(header.error());
  }
  const std::size_t whole = kFrameHeaderBytes + header->length;
  if (available < whole) return std::nullopt;
  Frame frame{header->type, buffer_.substr(consumed_ + kFrameHeaderBytes, header->length)};
  consumed_ += whole;
  return frame;
}

}  // namespace sortie::wire
