// The networks of this host: its addresses, and from which of them another host is reached.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace sortie::runner {

/// "eth0 10.1.0.2/24" for every IPv4 and IPv6 address of every interface that is up, in the
/// kernel's order; at most 1024 of them. Link-local IPv6 addresses are left out: they mean nothing
/// without an interface.
std::vector<std::string> interface_addresses();

/// The local address of the route to a numeric address; nothing is sent. Empty when there is none.
std::string address_towards(const std::string& peer);

/// {peer, address_towards(peer)} of every peer with a route.
std::vector<std::pair<std::string, std::string>> routes_to(const std::vector<std::string>& peers);

}  // namespace sortie::runner
