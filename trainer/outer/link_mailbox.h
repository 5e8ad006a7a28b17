// LinkMailbox: assembles the messages of one peer in one epoch from their pieces, which may arrive
// over several connections and before the message is requested. Not thread-safe.
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
  /// Most bytes of a peer's messages that were not requested yet; more is a protocol error.
  static constexpr std::uint64_t kMostAhead = std::uint64_t{4} << 30;

  /// Requests the next message of that tag into `bytes`, which must stay valid until forget() or
  /// take(). Returns its number.
  std::uint64_t ask(std::uint32_t tag, std::span<std::byte> bytes);
  /// Returns nullopt while the message is incomplete. ErrorCode::protocol if it has another size.
  std::optional<Result<>> outcome(std::uint32_t tag, std::uint64_t number) const;
  /// Removes a complete message. If it arrived before it was requested, returns its bytes, which
  /// the caller copies to the requested memory; else nullptr.
  std::unique_ptr<std::byte[]> take(std::uint32_t tag, std::uint64_t number);
  void forget(std::uint32_t tag, std::uint64_t number) { messages_.erase({tag, number}); }

  /// Adds a piece to its message. Error if the piece fits no message, or if too many bytes were not
  /// requested.
  Result<> deliver(const RecordHead& head, std::span<const std::byte> piece);

  void clear();

 private:
  struct Message {
    std::uint64_t size = 0, have = 0;
    bool begun = false, asked = false;
    std::span<std::byte> target;        // if requested
    std::unique_ptr<std::byte[]> kept;  // arrived before that
  };
  std::map<std::pair<std::uint32_t, std::uint64_t>, Message> messages_;
  std::map<std::uint32_t, std::uint64_t> asked_;  // messages requested so far, by tag
  std::uint64_t ahead_ = 0;
};

}  // namespace sortie::trainer::outer
