// StreamPlace: how far a stream of a device has got, as the stream itself writes it to memory of
// the host. The host can read it at any time without a call of the device's driver, which may
// block.
#pragma once

#include <cstdint>

namespace sortie::trainer {

/// A point in the order of a stream's work.
struct StreamMark {
  std::uint64_t value = 0;  // for StreamPlace::value
  std::uint64_t kept = 0;   // the bits of the value before that stay as they are
  bool timed = false;       // whether the time from this mark to the next one counts
};

/// Zero at first. Only marks of one stream write it, one after another; any thread may read it.
struct StreamPlace {
  std::uint64_t value = 0;     // of the latest mark that the stream has passed
  std::uint64_t timed_ns = 0;  // from timed marks to the marks that follow, by the device's clock
  std::uint64_t since_ns = 0;  // the latest mark's time, by the device's clock
  std::uint64_t is_timed = 0;  // whether the latest mark is timed
};

}  // namespace sortie::trainer
