// The network device of a tunnel, by rtnetlink and ioctl: made, configured and removed without the
// `ip` program, which a host may not have. All calls are about the network namespace of the caller
// and need CAP_NET_ADMIN unless they only look.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::runner::tunnel {

/// "sortie-" and eight hexadecimal digits: the longest name that an interface may have. No other
/// interface is ever touched.
bool is_device_name(std::string_view name);

/// Whether this process may configure networks (CAP_NET_ADMIN).
bool may_configure_networks();

/// A WireGuard device of the kernel's. ErrorCode::unsupported: the kernel has no such type;
/// ErrorCode::io: anything else, also a device of that name.
Result<> create_kernel_device(const std::string& name);
/// Of any kind. No error when there is none.
Result<> delete_device(const std::string& name);

/// Takes the IPv4 address, with the network of `prefix` bits that is reached by it, and the MTU;
/// then it is up.
Result<> configure_device(const std::string& name, const std::string& address, int prefix, int mtu);
/// Packets that come in by this device may go out again by any: of this device alone, and as long
/// as it exists.
Result<> forward_packets_of(const std::string& name);

/// Devices of tunnels, of whatever run.
std::vector<std::string> tunnel_devices();

/// "10.1.0.0/16": every IPv4 network that this host has a route to, the default route left out; at
/// most 4096. `table` is the text of /proc/net/route.
std::vector<std::string> networks_in(std::string_view table);

}  // namespace sortie::runner::tunnel
