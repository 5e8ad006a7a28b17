// Prevents fragmentation of UDP packets: the packets that arrive then show the MTU of the path.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

namespace sortie::runner {

/// Sets don't-fragment on every packet of a UDP socket, whatever path MTU the kernel assumes.
inline void never_fragment(int socket, bool v6) {
  constexpr int kProbe = IP_PMTUDISC_PROBE;
  static_assert(kProbe == IPV6_PMTUDISC_PROBE);
  (void)::setsockopt(socket, v6 ? IPPROTO_IPV6 : IPPROTO_IP,
                     v6 ? IPV6_MTU_DISCOVER : IP_MTU_DISCOVER, &kProbe, sizeof kProbe);
}

}  // namespace sortie::runner
