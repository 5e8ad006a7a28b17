// Packets that are lost rather than cut: what a path carries shows in which of them arrive.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

namespace sortie::runner {

/// Don't-fragment on every packet of a UDP socket, whatever the kernel believes the path to carry.
inline void never_fragment(int socket, bool v6) {
  constexpr int kProbe = IP_PMTUDISC_PROBE;
  static_assert(kProbe == IPV6_PMTUDISC_PROBE);
  (void)::setsockopt(socket, v6 ? IPPROTO_IPV6 : IPPROTO_IP,
                     v6 ? IPV6_MTU_DISCOVER : IP_MTU_DISCOVER, &kProbe, sizeof kProbe);
}

}  // namespace sortie::runner
