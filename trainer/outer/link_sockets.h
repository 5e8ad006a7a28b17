// Sockets of the links between sites: numeric addresses, listening, dialling, and the kernel's
// counts of bytes.
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
/// Listens on all addresses of this machine, or with `only_here` on the loopback address. Port 0 =
/// any free one. The socket is non-blocking.
Result<Listener> listen_for_links(std::uint16_t port, bool only_here = false);

/// "10.0.0.1" and 7000 as "10.0.0.1:7000"; IPv6 in brackets.
std::string link_address(const std::string& host, std::uint16_t port);

/// Returns the address from which this machine reaches the internet, else the loopback address.
/// Sends nothing.
std::string outward_address();

/// Starts a non-blocking connect to "ADDRESS:PORT". dialled() returns its outcome.
Result<Fd> dial_link(const std::string& address);
/// The same to "launcher/HOST:PORT" through the launcher. `forward` is the path of the forwarding
/// socket of this host's runner (SORTIE_FORWARD). If the host can not be reached, the connection is
/// closed.
Result<Fd> dial_through_launcher(const std::string& forward, const std::string& address);
/// Returns the outcome of dialling, once the socket is writable.
Result<> dialled(int socket);

/// Makes small records be sent at once (TCP_NODELAY).
void tune_link(int socket);

/// Bytes with headers and acknowledgements, as a network interface counts them: TCP's payload and,
/// for each segment, the Ethernet, IP and TCP headers. Data that arrives twice, because the peer
/// sent it again too early, counts once: the kernel does not tell its size. All zero if the kernel
/// does not count them, as for a stream through the launcher.
struct WireCount {
  std::uint64_t sent = 0, received = 0;
  std::uint64_t retransmitted = 0;  // segments
};
WireCount wire_count(int socket);

}  // namespace sortie::trainer::outer
