// Where the ranks of other hosts find rank 0 when that runs on the launcher's own machine.
#pragma once

#include <string>

namespace sortie::launcher {

/// The address of this machine from which `peer` (a numeric address) is reached, by the routing
/// table: nothing is sent. Empty when there is no route.
std::string address_towards(const std::string& peer);

}  // namespace sortie::launcher
