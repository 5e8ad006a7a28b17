// At which address other hosts reach this machine.
#pragma once

#include <string>

namespace sortie::launcher::check {

/// The address of this machine from which `peer` (a numeric address) is reached, by the routing
/// table: nothing is sent. Empty when there is no route.
std::string address_towards(const std::string& peer);

}  // namespace sortie::launcher::check
