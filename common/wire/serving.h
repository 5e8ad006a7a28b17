// What a runner that stays (`sortie-runner --stdio --serve`) and whoever keeps it say to each other
// between conversations. A conversation is the usual stream of messages; these frames are never
// part of one. README.md has their order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/wire/frame.h"

namespace sortie::wire {

/// Types of frames, above those of all messages.
enum class Serving : std::uint8_t {
  terms = 224,  // keeper: ServeTerms; the first frame
  ping = 225,   // keeper, while no conversation is on
  pong = 226,   // runner: the answer
  begin = 227,  // keeper: a conversation follows
  begun = 228,  // runner: what follows is said by the process that converses
  ended = 229,  // runner: ConversationEnd; nothing of the conversation follows
};
inline constexpr std::size_t kMaxServingPayload = 64;

/// When a runner that stays ends by itself.
struct ServeTerms {
  std::uint32_t idle_ms = 0;     // without a conversation
  std::uint32_t silence_ms = 0;  // without a frame, while there is no conversation
};

/// How the process of a conversation ended.
struct ConversationEnd {
  std::uint32_t code = 0;      // exit code, or signal
  std::uint32_t signaled = 0;  // 1: by a signal
};

constexpr bool is_serving(std::uint8_t type) {
  return type >= static_cast<std::uint8_t>(Serving::terms) &&
         type <= static_cast<std::uint8_t>(Serving::ended);
}

/// Length of the payload that a whole header of a frame announces.
std::size_t announced_bytes(std::string_view header);

/// Whole frames.
std::string serving_frame(Serving type);
std::string serving_frame(const ServeTerms& terms);
std::string serving_frame(const ConversationEnd& end);

/// Of a payload. ErrorCode::protocol when it is none.
Result<ServeTerms> read_terms(std::string_view payload);
Result<ConversationEnd> read_end(std::string_view payload);

/// Follows a stream of frames without keeping them, so that whoever passes bytes on knows where a
/// frame ends and takes the serving frames out.
class FrameScan {
 public:
  struct Control {
    Serving type{};
    std::string payload;
  };

  /// `last`: type of the message after which nothing more is passed on (Goodbye); 0: none.
  explicit FrameScan(std::uint8_t last = 0) : last_(last) {}

  /// Takes bytes off the front of `bytes` and appends those of messages to `out`, up to the next
  /// serving frame, which is returned, or to the end of `bytes`. ErrorCode::protocol: no frames.
  Result<std::optional<Control>> take(std::string_view& bytes, std::string& out);

  /// No message is half through.
  bool at_border() const { return left_ == 0 && head_.empty(); }
  /// The message of type `last` is through: what came after it was dropped.
  bool at_last() const { return over_; }

 private:
  std::string head_;      // an unfinished header, or an unfinished serving frame
  std::size_t left_ = 0;  // bytes of a message's payload that are still to come
  std::uint8_t last_ = 0, type_ = 0;
  bool over_ = false;
};

/// Type number of Goodbye, for FrameScan.
std::uint8_t goodbye_type();

}  // namespace sortie::wire
