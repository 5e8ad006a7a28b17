// Byte streams between hosts of a job by way of the launcher, for hosts that do not reach each
// other. A rank connects to its runner and names a port of another host; that host's runner
// connects to the port on its own loopback address. Included by message.h.
//
// Each end grants the other credit for bytes that it will take; the first credit says that the
// stream is open. A close by either end is the end of both directions, behind all data that was
// sent before it.
#pragma once

#include <cstdint>
#include <string>

namespace sortie::wire {

/// A stream's window: bytes that may be under way in one direction.
inline constexpr std::uint64_t kForwardWindow = 1u << 20;
/// Numbers that the launcher gives have this bit, those of a runner do not: they never meet.
inline constexpr std::uint64_t kForwardByLauncher = std::uint64_t{1} << 63;
inline constexpr std::size_t kMaxForwardBytes = 64u << 10;  // of one ForwardData
inline constexpr std::size_t kMaxForwards = 256;            // open streams of a host

/// runner -> launcher: a rank wants this port of that host. launcher -> runner: connect to that
/// port here; `host` is empty.
struct ForwardOpen {
  std::uint64_t id = 0;  // of the connection between launcher and runner
  std::string host;
  std::uint32_t port = 0;
};
struct ForwardData {
  std::uint64_t id = 0;
  std::string bytes;  // at most kMaxForwardBytes, within the credit
};
struct ForwardCredit {
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
};
struct ForwardClose {
  std::uint64_t id = 0;
  std::string why;  // empty: one of the programs has closed its end
};

}  // namespace sortie::wire
