// LinkMailbox: messages of one peer in one epoch, put together from their pieces, which may come
// over several connections and before anybody asks for the message. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "common/base/result.h"
#include "trainer/outer/link_record.h"

namespace sortie::trainer::outer {

class LinkMailbox {
 public:
  /// Bytes of a peer's messages that nobody has asked for yet: beyond that it is out of order.
  static constexpr std::uint64_t kMostAhead = std::uint64_t{4} << 30;

  /// The next message of that tag is to go to `bytes`, which must stay until forget() or take().
  /// Returns its number.
  std::uint64_t ask(std::uint32_t tag, std::span<std::byte> bytes);
  /// Nothing while it is not complete. ErrorCode::protocol: its size is another one.
  std::optional<Result<>> outcome(std::uint32_t tag, std::uint64_t number) const;
  /// Of a complete one: what is not in the asker's memory yet is copied there by the caller, from
  /// here. Empty when there is nothing to do.
  std::unique_ptr<std::byte[]> take(std::uint32_t tag, std::uint64_t number);
  void forget(std::uint32_t tag, std::uint64_t number) { messages_.erase({tag, number}); }

  /// Error: a piece that no message has, or too much that nobody asks for.
  Result<> deliver(const RecordHead& head, std::span<const std::byte> piece);

  void clear();

 private:
  struct Message {
    std::uint64_t size = 0, have = 0;
    bool begun = false, asked = false;
    std::span<std::byte> target;        // when asked
    std::unique_ptr<std::byte[]> kept;  // what came before that
  };
  std::map<std::pair<std::uint32_t, std::uint64_t>, Message> messages_;
  std::map<std::uint32_t, std::uint64_t> asked_;  // messages so far, by tag
  std::uint64_t ahead_ = 0;
};

}  // namespace sortie::trainer::outer
