// Byte streams between hosts of a job through the launcher, for hosts that can not reach each
// other. A rank connects to its runner and names a port of another host. That host's runner
// connects to the port on its own loopback address. Included by message.h.
//
// Each end grants the other credit for the bytes that it can accept. The first credit also says
// that the stream is open. A close by either end closes both directions, after all data that was
// sent before it.
#pragma once

#include <cstdint>
#include <string>

namespace sortie::wire {

/// Flow-control window: bytes that may be in flight in one direction of a stream.
inline constexpr std::uint64_t kForwardWindow = 1u << 20;
/// Set in ids that the launcher assigns, not set in those of a runner, so that they never collide.
inline constexpr std::uint64_t kForwardByLauncher = std::uint64_t{1} << 63;
inline constexpr std::size_t kMaxForwardBytes = 64u << 10;  // in one ForwardData
inline constexpr std::size_t kMaxForwards = 256;            // open streams per host

/// runner -> launcher: a rank wants to connect to this port of that host. launcher -> runner:
/// connect to that port on this host; `host` is empty.
struct ForwardOpen {
  std::uint64_t id = 0;  // unique within the connection between launcher and runner
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
  std::string why;  // empty = one of the programs has closed its end
};

}  // namespace sortie::wire
