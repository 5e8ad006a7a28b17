// The holder of a tunnel: the runner's own program in the role `tunnel NAME`, started by the runner
// with one end of a socket as stdin and stdout. It alone needs CAP_NET_ADMIN, so it may be started
// by sudo. It makes the device and its keys when it starts, and removes all of that when its stdin
// ends, whatever has ended the runner. One line with a JSON object each way at a time (README.md).
#pragma once

#include <string>

namespace sortie::runner::tunnel {

/// The exit code of the process.
int hold_tunnel(const std::string& name);

/// Removes devices, and sockets of wireguard-go, whose holders are gone; those of this network
/// namespace. How many devices are left, because this process may not remove them.
std::size_t remove_stale_tunnels();

}  // namespace sortie::runner::tunnel
