// Creates, configures and removes the network device of a tunnel through rtnetlink and ioctl,
// because a host may lack the `ip` program. All calls act on the caller's network namespace and
// need CAP_NET_ADMIN unless they only read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::runner::tunnel {

/// Whether `name` is "sortie-" and eight hexadecimal digits, the maximum length of an interface
/// name. Interfaces with other names are never changed.
bool is_device_name(std::string_view name);

/// Whether this process may configure networks (CAP_NET_ADMIN).
bool may_configure_networks();

/// Creates a WireGuard device of the kernel. ErrorCode::unsupported: the kernel has no WireGuard.
/// ErrorCode::io: any other error, such as an existing device of that name.
Result<> create_kernel_device(const std::string& name);
/// Deletes a device of any kind. No error if it does not exist.
Result<> delete_device(const std::string& name);

/// Sets the IPv4 address, the network of `prefix` bits that is reachable through the device, and
/// the MTU, and brings the device up.
Result<> configure_device(const std::string& name, const std::string& address, int prefix, int mtu);
/// Allows the host to forward packets that arrive on this device. The setting affects only this
/// device and vanishes with it.
Result<> forward_packets_of(const std::string& name);

/// Names of the tunnel devices of all runs.
std::vector<std::string> tunnel_devices();

/// IPv4 networks that this host has a route to, such as "10.1.0.0/16", without the default route;
/// at most 4096. `table` is the text of /proc/net/route.
std::vector<std::string> networks_in(std::string_view table);

}  // namespace sortie::runner::tunnel
