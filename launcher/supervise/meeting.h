// Where the ranks of all hosts meet: MASTER_ADDR from what the hosts say about their networks, and
// what frameworks need to use the network that the config names. Pure.
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
  int bits = 0;  // of the network
};

/// What one host has said.
struct HostNetwork {
  std::string name;        // as in the plan
  std::string hostname;    // as it calls itself
  std::string reached_at;  // by this launcher; empty when not known
  std::vector<InterfaceAddress> addresses;
  std::vector<std::pair<std::string, std::string>> routes;  // of rank 0's host: {peer, own address}
};

/// The addresses of a JobReady ("eth0 10.1.0.2/24"). Error: outside that grammar.
Result<std::vector<InterfaceAddress>> parse_addresses(const std::vector<std::string>& lines);

/// Those of an interface name, a name pattern or a CIDR.
std::vector<InterfaceAddress> matching(const std::vector<InterfaceAddress>& addresses,
                                       const std::string& wanted);

struct Meeting {
  std::string address;  // MASTER_ADDR
  std::string how;      // why this one, for events.jsonl
  bool doubtful = false;
};

/// For hosts in plan order. Error: `interface` is set and a host has nothing like that.
Result<Meeting> choose_meeting(const std::vector<HostNetwork>& hosts, const std::string& interface);

/// NCCL_SOCKET_IFNAME and its kin for one host, without those that `user` sets.
Environment interface_environment(const HostNetwork& host, const std::string& interface,
                                  const Environment& user);

/// The addresses to ask rank 0's host for its routes to: where hosts after it were reached.
std::vector<std::string> peers_of_first(const std::vector<std::string>& reached_at);

}  // namespace sortie::launcher
