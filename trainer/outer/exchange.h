// The mean of the sites' changes, with the same bits on every site.
//
// The vector is cut into one chunk per member, at borders of blocks. Each member sends the others
// their chunks of its own change, encoded. The owner of a chunk adds up weight x value in f32 in
// the order of the members, its own values as they are; it encodes the sum, sends it to all, and
// takes for itself what they decode. So a member sends and receives 2 (M - 1) / M encoded vectors
// whatever M is, and a value is rounded to the wire twice.
//
// A member of weight 0 (it abstains) sends nothing of its change, which is not even read, but owns
// its chunk like the others. One member alone needs no links; its change is rounded once.
//
// Chunks travel in pieces, each a message. What a member receives from another it takes in the
// order in which that one sends it.
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

/// Tag of its messages.
inline constexpr std::uint32_t kExchangeTag = 1;

/// The same on all members but for `threads`. None of the sizes changes the bits of the mean.
struct ExchangeSettings {
  WireFormat format;
  int threads = 1;
  std::size_t piece = 1 << 19;   // values
  std::size_t ahead = 32 << 20;  // encoded bytes that are sent before the first is waited for: what
                                 // a link holds (rate x round trip)
  std::size_t window = 256 << 20;  // encoded bytes in memory; links run dry when it is full
};

/// What the links may still read after an exchange that failed: it lives until the links have
/// gone, or have been opened again. One exchange at a time uses it.
class ExchangeMemory {
 public:
  /// At least so many bytes, of any content.
  std::span<std::byte> bytes(std::size_t size);

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t size_ = 0;
};

struct ExchangeFigures {
  std::uint64_t hash = 0;            // of the mean, for OuterVote
  std::uint64_t sent = 0;            // bytes of messages, as much is received
  double waited = 0.0;               // seconds for the others and for the links
  double signal = 0.0, noise = 0.0;  // sums of squares, of the rounding of the own chunk's sum
};

/// Opens the links for the order (but for one member) and exchanges. `self`: number of this member.
/// `mean` has as many values as `delta`; on an error all of it is NaN. The error of `feedback`
/// (nullptr: none) is added to `delta`; it changes with ErrorFeedback::commit().
/// ErrorCode::diverged: this site's change is not finite, or the sum is not; else as SiteLinks.
Result<> exchange(SiteLinks& links, const training::OuterExchange& order, std::size_t self,
                  const ExchangeSettings& settings, std::span<const float> delta,
                  std::span<float> mean, ErrorFeedback* feedback, ExchangeMemory& memory,
                  ExchangeFigures* figures = nullptr);

/// XXH3, 64 bits.
std::uint64_t hash_of(std::span<const float> values);

}  // namespace sortie::trainer::outer
