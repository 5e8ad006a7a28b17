#include "common/wire/serving.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "common/wire/codec.h"

namespace sortie::wire {
namespace {

static_assert(std::variant_size_v<Message> < static_cast<std::size_t>(Serving::terms));

constexpr std::size_t kNumberBytes = 4;

void put_number(std::string& bytes, std::uint32_t value) {
  for (std::size_t i = 0; i < kNumberBytes; ++i)
    bytes.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

std::uint32_t number_at(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < kNumberBytes; ++i)
    value |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return value;
}

std::string two_numbers(Serving type, std::uint32_t first, std::uint32_t second) {
  std::string payload;
  put_number(payload, first);
  put_number(payload, second);
  return encode_frame(static_cast<std::uint8_t>(type), payload);
}

Result<std::pair<std::uint32_t, std::uint32_t>> read_two(std::string_view payload) {
  if (payload.size() != 2 * kNumberBytes)
    return fail(ErrorCode::protocol, fmt::format("a serving frame has {} bytes, expected {}",
                                                 payload.size(), 2 * kNumberBytes));
  return std::pair{number_at(payload, 0), number_at(payload, kNumberBytes)};
}

}  // namespace

std::size_t announced_bytes(std::string_view header) {
  return number_at(header, 0);
}

std::string serving_frame(Serving type) {
  return encode_frame(static_cast<std::uint8_t>(type), {});
}

std::string serving_frame(const ServeTerms& terms) {
  return two_numbers(Serving::terms, terms.idle_ms, terms.silence_ms);
}

std::string serving_frame(const ConversationEnd& end) {
  return two_numbers(Serving::ended, end.code, end.signaled);
}

Result<ServeTerms> read_terms(std::string_view payload) {
  SORTIE_ASSIGN_OR_RETURN(const auto numbers, read_two(payload));
  if (numbers.first == 0 || numbers.second == 0)
    return fail(ErrorCode::protocol, "terms of serving without an end");
  return ServeTerms{numbers.first, numbers.second};
}

Result<ConversationEnd> read_end(std::string_view payload) {
  SORTIE_ASSIGN_OR_RETURN(const auto numbers, read_two(payload));
  return ConversationEnd{numbers.first, numbers.second};
}

std::uint8_t goodbye_type() {
  static const auto type = static_cast<std::uint8_t>(encode(Goodbye{})[4]);
  return type;
}

Result<std::optional<FrameScan::Control>> FrameScan::take(std::string_view& bytes,
                                                          std::string& out) {
  while (!bytes.empty()) {
    if (over_) {
      bytes = {};
      break;
    }
    if (left_ > 0) {
      const std::size_t count = std::min(left_, bytes.size());
      out.append(bytes.substr(0, count));
      bytes.remove_prefix(count);
      left_ -= count;
      over_ = left_ == 0 && last_ != 0 && type_ == last_;
      continue;
    }
    std::size_t length = head_.size() < kFrameHeaderBytes ? 0 : number_at(head_, 0);
    const std::size_t count = std::min(kFrameHeaderBytes + length - head_.size(), bytes.size());
    head_.append(bytes.substr(0, count));
    bytes.remove_prefix(count);
    if (head_.size() < kFrameHeaderBytes) break;
    length = number_at(head_, 0);
    type_ = static_cast<std::uint8_t>(head_[4]);
    const bool serving = is_serving(type_);
    if (head_[5] != 0 || head_[6] != 0 || head_[7] != 0 ||
        length > (serving ? kMaxServingPayload : kMaxPayloadBytes))
      return fail(ErrorCode::protocol, "bytes received are no Sortie frames");
    if (!serving) {
      out.append(std::exchange(head_, {}));
      left_ = length;
      over_ = left_ == 0 && last_ != 0 && type_ == last_;
      continue;
    }
    if (head_.size() < kFrameHeaderBytes + length) continue;
    return Control{static_cast<Serving>(type_), std::exchange(head_, {}).substr(kFrameHeaderBytes)};
  }
  return std::optional<Control>();
}

}  // namespace sortie::wire
