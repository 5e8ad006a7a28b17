// The networks of this host: its addresses, and the local address used to reach another host.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace sortie::runner {

/// Lines such as "eth0 10.1.0.2/24" for every IPv4 and IPv6 address of every interface that is up,
/// in the kernel's order; at most 1024. Link-local IPv6 addresses are left out: they mean nothing
/// without an interface.
std::vector<std::string> interface_addresses();

/// Local address of the route to the numeric address `peer`. Sends nothing. Empty if there is no
/// route.
std::string address_towards(const std::string& peer);

/// {peer, address_towards(peer)} for every peer that has a route.
std::vector<std::pair<std::string, std::string>> routes_to(const std::vector<std::string>& peers);

}  // namespace sortie::runner
