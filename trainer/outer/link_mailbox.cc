#include "trainer/outer/link_mailbox.h"

#include <fmt/core.h>

#include <cstring>

namespace sortie::trainer::outer {

std::uint64_t LinkMailbox::ask(std::uint32_t tag, std::span<std::byte> bytes) {
  const std::uint64_t number = asked_[tag]++;
  Message& message = messages_[{tag, number}];
  message.asked = true;
  message.target = bytes;
  return number;
}

std::optional<Result<>> LinkMailbox::outcome(std::uint32_t tag, std::uint64_t number) const {
  const auto found = messages_.find({tag, number});
  if (found == messages_.end() || !found->second.begun) return std::nullopt;
  const Message& message = found->second;
  if (message.size != message.target.size())
    return fail(ErrorCode::protocol, fmt::format("message {} of tag {} has {} bytes, not {}",
                                                 number, tag, message.size, message.target.size()));
  if (message.have < message.size) return std::nullopt;
  return Result<>();
}

std::unique_ptr<std::byte[]> LinkMailbox::take(std::uint32_t tag, std::uint64_t number) {
  const auto found = messages_.find({tag, number});
  std::unique_ptr<std::byte[]> kept = std::move(found->second.kept);
  if (kept) ahead_ -= found->second.size;
  messages_.erase(found);
  return kept;
}

Result<> LinkMailbox::deliver(const RecordHead& head, std::span<const std::byte> piece) {
  const auto asked = asked_.find(head.tag);
  const bool is_past = asked != asked_.end() && head.number < asked->second &&
                       !messages_.contains({head.tag, head.number});
  if (is_past) return fail(ErrorCode::protocol, "a piece of a message that is complete");
  if (head.offset > head.size || head.offset % kLinkPieceBytes != 0 ||
      piece.size() != piece_bytes(head.size, head.offset))
    return fail(ErrorCode::protocol, "a piece that is no part of its message");
  Message& message = messages_[{head.tag, head.number}];
  if (!message.begun) {
    message.begun = true;
    message.size = head.size;
    const bool fits = message.asked && message.target.size() == head.size;
    if (!fits && !message.asked) {
      if (head.size > kMostAhead - ahead_)
        return fail(ErrorCode::protocol,
                    fmt::format("more than {} bytes that were not requested", kMostAhead));
      ahead_ += head.size;
      message.kept = std::make_unique_for_overwrite<std::byte[]>(head.size);
    }
  }
  if (message.size != head.size || piece.size() > message.size - message.have)
    return fail(ErrorCode::protocol, "a piece that its message has already");
  message.have += piece.size();
  std::byte* const to = message.kept ? message.kept.get() : message.target.data();
  const bool wanted = message.kept || message.target.size() == message.size;
  if (wanted && !piece.empty()) std::memcpy(to + head.offset, piece.data(), piece.size());
  return {};
}

void LinkMailbox::clear() {
  messages_.clear();
  asked_.clear();
  ahead_ = 0;
}

}  // namespace sortie::trainer::outer
