// SiteLinks: messages between the leaders of one part on different sites.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/base/result.h"
#include "common/training/outer.h"

namespace sortie::trainer::outer {

/// Totals since the start, of this leader.
struct LinkCounters {
  std::uint64_t payload_sent = 0, payload_received = 0;  // bytes of messages
  std::uint64_t wire_sent = 0, wire_received = 0;  // with all headers and acknowledgements, as the
                                                   // kernel counts them where it does
  std::uint64_t retransmitted = 0;                 // segments
};

/// Reliable, in order per (peer, tag); sealed and checked. One thread uses it, but for cancel() and
/// counters().
class SiteLinks {
 public:
  virtual ~SiteLinks() = default;
  /// Where this leader listens, for OuterJoin; empty = nowhere.
  virtual std::string address() const = 0;
  /// Links to all members of an order, of which this site is number `self`; what was under way for
  /// an earlier epoch is dropped on both sides. Links that work are kept between epochs.
  virtual Result<> open(const training::OuterExchange& order, std::size_t self) = 0;
  /// Queues a message to member `peer`. `bytes` must stay as they are until flush() or open().
  virtual Result<> send(std::size_t peer, std::uint32_t tag, std::span<const std::byte> bytes) = 0;
  /// Waits for a message of exactly that size. ErrorCode::lost names the peer whose link
  /// broke or that was silent too long; ErrorCode::protocol: another size, or a wrong checksum.
  virtual Result<> receive(std::size_t peer, std::uint32_t tag, std::span<std::byte> bytes) = 0;
  /// Waits until all that was sent is out of the caller's memory.
  virtual Result<> flush() = 0;
  /// Ends calls that wait, with ErrorCode::interrupted, until the next open(). From any thread.
  virtual void cancel() = 0;
  virtual LinkCounters counters() const = 0;
};

}  // namespace sortie::trainer::outer
