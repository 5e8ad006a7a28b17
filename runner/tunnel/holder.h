// The holder of a tunnel: the runner's program in the role `tunnel NAME`, which the runner starts
// with one end of a socket as stdin and stdout. Only the holder needs CAP_NET_ADMIN, so sudo may
// start it. It creates the device and its keys at start and removes both when its stdin ends,
// however the runner ended. Requests and answers are lines with one JSON object each, one at a time
// (README.md).
#pragma once

#include <string>

namespace sortie::runner::tunnel {

/// Runs the holder of the device `name`. Returns the exit code of the process.
int hold_tunnel(const std::string& name);

/// Removes devices and sockets of wireguard-go in this network namespace whose holders are gone.
/// Returns the number of devices that are left because this process may not remove them.
std::size_t remove_stale_tunnels();

}  // namespace sortie::runner::tunnel
