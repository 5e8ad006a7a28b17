// Fuzzes the frame decoder with bytes from a peer, fed in pieces of any size. The result does not
// depend on the pieces, and an accepted message survives encoding and decoding.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/wire/codec.h"

namespace {

using namespace sortie::wire;

/// Small, so that short inputs reach the limit.
constexpr std::size_t kMaxPayload = 4096;

/// Result of decoding a stream: its frames, and whether it ended in an error or at a frame border.
struct Outcome {
  std::vector<Frame> frames;
  bool broken = false;
  bool at_border = true;
};

/// Feeds `stream` in pieces whose sizes `sizes` gives cyclically; at once if `sizes` is empty.
Outcome receive(std::string_view stream, std::string_view sizes) {
  FrameDecoder decoder(kMaxPayload);
  Outcome outcome;
  for (std::size_t piece = 0; !stream.empty(); ++piece) {
    std::size_t size = stream.size();
    if (!sizes.empty()) size = static_cast<unsigned char>(sizes[piece % sizes.size()]) + 1u;
    size = std::min(size, stream.size());
    decoder.feed(stream.substr(0, size));
    stream.remove_prefix(size);
    for (;;) {
      auto frame = decoder.next();
      if (!frame) {
        SORTIE_CHECK(frame.error().code == sortie::ErrorCode::protocol);
        outcome.broken = true;
        SORTIE_CHECK(!decoder.next().has_value());  // errors are final
        break;
      }
      if (!*frame) break;
      SORTIE_CHECK((*frame)->payload.size() <= kMaxPayload);
      outcome.frames.push_back(std::move(**frame));
    }
  }
  outcome.at_border = decoder.at_border();
  return outcome;
}

void check_message(const Frame& frame) {
  const auto message = decode(frame);
  if (!message) {
    SORTIE_CHECK(message.error().code == sortie::ErrorCode::protocol);
    return;
  }
  SORTIE_CHECK(message->index() + 1 == frame.type);
  SORTIE_CHECK(!message_name(*message).empty());
  const std::string written = encode(*message);
  FrameDecoder decoder;
  decoder.feed(written);
  const auto again = decoder.next();
  SORTIE_CHECK(again.has_value() && again->has_value() && decoder.at_border());
  const auto same = decode(**again);
  SORTIE_CHECK(same.has_value(), "{}", same ? "" : same.error().message);
  SORTIE_CHECK(encode(*same) == written);
}

}  // namespace

/// Byte 0 modulo 8 is the number of following bytes that give piece sizes. The rest is the stream.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.empty()) return 0;
  const std::size_t num_sizes = std::min<std::size_t>(data[0] % 8, size - 1);
  const std::string_view sizes = input.substr(1, num_sizes);
  const std::string_view stream = input.substr(1 + num_sizes);

  const Outcome whole = receive(stream, {});
  const Outcome pieces = receive(stream, sizes);
  SORTIE_CHECK(whole.broken == pieces.broken);
  SORTIE_CHECK(whole.broken || whole.at_border == pieces.at_border);
  SORTIE_CHECK(whole.frames.size() == pieces.frames.size());
  for (std::size_t i = 0; i < whole.frames.size(); ++i) {
    SORTIE_CHECK(whole.frames[i].type == pieces.frames[i].type);
    SORTIE_CHECK(whole.frames[i].payload == pieces.frames[i].payload);
    check_message(whole.frames[i]);
  }
  // Decodes the stream as a payload of every type, without a header that the fuzzer must get right.
  if (stream.size() > kMaxPayload) return 0;
  for (std::size_t type = 0; type <= std::variant_size_v<Message> + 1; ++type)
    check_message({static_cast<std::uint8_t>(type), std::string(stream)});
  return 0;
}
