// Computes the weighted mean of the sites' changes, bit-identical on every site.
//
// The vector is divided into one chunk per member, at block boundaries. Each member encodes its own
// change and sends every other member the part in that member's chunk. The owner of a chunk sums
// weight x value in f32 in member order, with its own values unencoded. It encodes the sum, sends
// it to all members, and itself uses the decoded values. So each of M members sends and receives 2
// (M - 1) / M encoded vectors, and a value is rounded to the wire format twice.
//
// A member of weight 0 (it abstains) does not send its change, which is not even read, but owns its
// chunk like the others. A single member needs no links; its change is rounded once.
//
// Chunks are sent in pieces, one message each. A member receives the messages of another in the
// order in which that one sends them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/base/result.h"
#include "common/training/outer.h"
#include "trainer/outer/feedback.h"
#include "trainer/outer/site_links.h"
#include "trainer/outer/wire.h"

namespace sortie::trainer::outer {

/// Tag of the messages of an exchange.
inline constexpr std::uint32_t kExchangeTag = 1;

/// Must be the same on all members, except `threads`. None of the sizes changes the bits of the
/// mean.
struct ExchangeSettings {
  WireFormat format;
  int threads = 1;
  std::size_t piece = 1 << 19;  // values
  /// Encoded bytes that are sent before the first receive: what a link holds (rate x round trip).
  std::size_t ahead = 32 << 20;
  /// Encoded bytes in memory; links become idle when it is full.
  std::size_t window = 256 << 20;
};

/// Memory of messages, which the links may still read after a failed exchange. It must live until
/// the links are destroyed or opened again. Used by one exchange at a time.
class ExchangeMemory {
 public:
  /// Returns `size` bytes of undefined content.
  std::span<std::byte> bytes(std::size_t size);

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t size_ = 0;
};

/// Statistics of one exchange.
struct ExchangeFigures {
  std::uint64_t hash = 0;            // of the mean, for OuterVote
  std::uint64_t sent = 0;            // bytes of messages; as many are received
  double waited = 0.0;               // seconds of waiting for members and links
  double signal = 0.0, noise = 0.0;  // sums of squares: own chunk, its rounding
};

/// Opens the links for the order, unless it has only one member, and exchanges `delta`. `self` is
/// the index of this member. `mean` has the size of `delta`; after an error it is filled with NaN.
/// The error of `feedback` (may be nullptr) is added to `delta`; ErrorFeedback::commit() updates
/// it. ErrorCode::diverged if this site's change or the sum is not finite, ErrorCode::protocol for
/// an invalid order or an unexpected message; otherwise the errors of SiteLinks.
Result<> exchange(SiteLinks& links, const training::OuterExchange& order, std::size_t self,
                  const ExchangeSettings& settings, std::span<const float> delta,
                  std::span<float> mean, ErrorFeedback* feedback, ExchangeMemory& memory,
                  ExchangeFigures* figures = nullptr);

/// XXH3, 64 bits.
std::uint64_t hash_of(std::span<const float> values);

}  // namespace sortie::trainer::outer
