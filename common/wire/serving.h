// Frames between a runner that stays (`sortie-runner --stdio --serve`) and its keeper, outside of
// conversations. A conversation is the usual stream of messages and never contains these frames.
// README.md has their order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/wire/frame.h"

namespace sortie::wire {

/// Frame types, above those of all messages.
enum class Serving : std::uint8_t {
  terms = 224,  // keeper: ServeTerms; the first frame
  ping = 225,   // keeper, outside of a conversation
  pong = 226,   // runner: the answer
  begin = 227,  // keeper: a conversation follows
  begun = 228,  // runner: from here on the process of the conversation sends
  ended = 229,  // runner: ConversationEnd; the conversation is complete
};
inline constexpr std::size_t kMaxServingPayload = 64;

/// When a runner that stays exits by itself.
struct ServeTerms {
  std::uint32_t idle_ms = 0;     // after this time without a conversation
  std::uint32_t silence_ms = 0;  // after this time without a frame, outside of a conversation
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

/// Length of the payload according to a frame header, which must be complete.
std::size_t announced_bytes(std::string_view header);

/// Each returns a whole frame.
std::string serving_frame(Serving type);
std::string serving_frame(const ServeTerms& terms);
std::string serving_frame(const ConversationEnd& end);

/// Each parses a payload. Fails with ErrorCode::protocol if it is malformed.
Result<ServeTerms> read_terms(std::string_view payload);
Result<ConversationEnd> read_end(std::string_view payload);

/// Follows a stream of frames without storing it. A relay uses it to find frame borders and to
/// remove the serving frames from the stream.
class FrameScan {
 public:
  struct Control {
    Serving type{};
    std::string payload;
  };

  /// `last`: type of the message after which nothing more is passed on (Goodbye); 0 = none.
  explicit FrameScan(std::uint8_t last = 0) : last_(last) {}

  /// Consumes bytes from the front of `bytes` and appends those of messages to `out`. Stops after
  /// the next serving frame, which it returns, or at the end of `bytes`, and then returns nullopt.
  /// Fails with ErrorCode::protocol if the bytes are no frames.
  Result<std::optional<Control>> take(std::string_view& bytes, std::string& out);

  /// True if no frame is incomplete.
  bool at_border() const { return left_ == 0 && head_.empty(); }
  /// True once a message of type `last` is complete; all later bytes are dropped.
  bool at_last() const { return over_; }

 private:
  std::string head_;      // an unfinished header, or an unfinished serving frame
  std::size_t left_ = 0;  // bytes of a message's payload that have not arrived yet
  std::uint8_t last_ = 0, type_ = 0;
  bool over_ = false;
};

/// Type of Goodbye, for FrameScan.
std::uint8_t goodbye_type();

}  // namespace sortie::wire
