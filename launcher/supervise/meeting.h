// Chooses where the ranks of all hosts meet: MASTER_ADDR from the networks that the hosts report,
// and the environment variables that make frameworks use the configured network. Pure.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "launcher/plan/plan.h"

namespace sortie::launcher {

struct InterfaceAddress {
  std::string interface;  // "eth0"
  std::string address;    // "10.1.0.2"
  bool v6 = false;
  std::array<unsigned char, 16> bytes{};
  int bits = 0;  // prefix length of the network
};

/// Whether the address is in 127.0.0.0/8, or is ::1 (or another one whose first 15 bytes are 0).
bool is_loopback(const InterfaceAddress& address);

/// What one host has reported.
struct HostNetwork {
  std::string name;        // as in the plan
  std::string hostname;    // as reported by the host
  std::string reached_at;  // address at which the launcher reached it; empty = unknown
  std::vector<InterfaceAddress> addresses;
  /// Of rank 0's host: {peer, own source address}.
  std::vector<std::pair<std::string, std::string>> routes;
};

/// Parses the addresses of a JobReady ("eth0 10.1.0.2/24"). ErrorCode::protocol for other forms.
Result<std::vector<InterfaceAddress>> parse_addresses(const std::vector<std::string>& lines);

/// Returns the addresses that match `wanted`: an interface name, a name pattern or a CIDR.
std::vector<InterfaceAddress> matching(const std::vector<InterfaceAddress>& addresses,
                                       const std::string& wanted);

struct Meeting {
  std::string address;    // MASTER_ADDR
  std::string how;        // why this address, for events.jsonl
  bool doubtful = false;  // other hosts may be unable to reach it
};

/// Chooses the address. `hosts` are in plan order. ErrorCode::unsupported if `interface` is set and
/// a host has no matching address, or the match is a loopback address that other hosts can not
/// reach.
Result<Meeting> choose_meeting(const std::vector<HostNetwork>& hosts, const std::string& interface);

/// Returns NCCL_SOCKET_IFNAME and similar variables for one host, except those that `user` sets.
Environment interface_environment(const HostNetwork& host, const std::string& interface,
                                  const Environment& user);

/// Returns the addresses at which the hosts after the first were reached. Rank 0's host reports its
/// routes to them.
std::vector<std::string> peers_of_first(const std::vector<std::string>& reached_at);

}  // namespace sortie::launcher
