// The address at which other hosts reach this machine.
#pragma once

#include <string>

namespace sortie::launcher::check {

/// Returns the local address that the routing table chooses for connections to `peer` (a numeric
/// address). Sends nothing. Empty if there is no route.
std::string address_towards(const std::string& peer);

}  // namespace sortie::launcher::check
