// SiteLinks: messages between the leaders of one part on different sites.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "common/base/result.h"
#include "common/training/outer.h"

namespace sortie::trainer::outer {

/// Totals since the start, of this leader.
struct LinkCounters {
  std::uint64_t payload_sent = 0, payload_received = 0;  // bytes of messages
  /// With all headers and acknowledgements, if the kernel counts them (WireCount).
  std::uint64_t wire_sent = 0, wire_received = 0;
  std::uint64_t retransmitted = 0;  // segments
};

/// Reliable messages, in order per (peer, tag), sealed (common/seal) and with checksums. Used by
/// one thread, except for cancel() and counters().
class SiteLinks {
 public:
  virtual ~SiteLinks() = default;
  /// Address at which this leader listens, for OuterJoin; empty = nowhere.
  virtual std::string address() const = 0;
  /// Connects to all members of an order; `self` is the index of this site. Drops, on both sides,
  /// what is in flight for an earlier epoch. Links that work are kept between epochs. Blocks.
  virtual Result<> open(const training::OuterExchange& order, std::size_t self) = 0;
  /// The member because of which the last open() failed: one that it did not reach, or this site if
  /// it reached none of several. nullopt = no member.
  virtual std::optional<std::size_t> unreached() const { return {}; }
  /// Queues a message to member `peer`. `bytes` must stay unchanged until flush() or open().
  virtual Result<> send(std::size_t peer, std::uint32_t tag, std::span<const std::byte> bytes) = 0;
  /// Blocks until a message of exactly that size is received. ErrorCode::lost if the peer's link
  /// broke or was silent for too long; the message names the peer. ErrorCode::protocol for another
  /// size or a wrong checksum.
  virtual Result<> receive(std::size_t peer, std::uint32_t tag, std::span<std::byte> bytes) = 0;
  /// Blocks until the links no longer read the memory of sent messages.
  virtual Result<> flush() = 0;
  /// Makes calls that wait return ErrorCode::interrupted until the next open(). Thread-safe.
  virtual void cancel() = 0;
  virtual LinkCounters counters() const = 0;
};

}  // namespace sortie::trainer::outer
