// Sockets of the links between sites: numeric addresses, listening, dialling, and what the kernel
// has counted.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::trainer::outer {

struct Listener {
  Fd socket;
  std::uint16_t port = 0;
};
/// On all addresses of this machine, or with `only_here` on the loopback one; port 0 = any free
/// one. Not blocking.
Result<Listener> listen_for_links(std::uint16_t port, bool only_here = false);

/// "10.0.0.1" and 7000 as "10.0.0.1:7000"; IPv6 in brackets.
std::string link_address(const std::string& host, std::uint16_t port);

/// The address from which this machine reaches the internet, else the loopback one. Nothing is
/// sent.
std::string outward_address();

/// Begins to connect to "ADDRESS:PORT"; not blocking, so it may yet fail.
Result<Fd> dial_link(const std::string& address);
/// The same to "launcher/HOST:PORT" by way of the launcher: `forward` is the socket of this host's
/// runner for that (SORTIE_FORWARD). A host that can not be reached closes the connection.
Result<Fd> dial_through_launcher(const std::string& forward, const std::string& address);
/// What became of dialling, when the socket can be written to.
Result<> dialled(int socket);

/// Small records go out at once.
void tune_link(int socket);

/// Bytes with headers and acknowledgements, as an interface counts them: TCP's payload and, for
/// each segment, the Ethernet, IP and TCP headers. All zero where the kernel does not tell, as of a
/// stream by way of the launcher.
struct WireCount {
  std::uint64_t sent = 0, received = 0;
  std::uint64_t retransmitted = 0;  // segments
};
WireCount wire_count(int socket);

}  // namespace sortie::trainer::outer
