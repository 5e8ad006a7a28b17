// A WireGuard mesh between the hosts of a job: endpoints, addresses, MTU and relays, which the
// launcher decides from the reports of the hosts. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "launcher/supervise/meeting.h"

namespace sortie::launcher::tunnel {

/// What is known about one host.
struct MeshHost {
  std::string name;
  std::string reached_at;  // address at which the launcher reached it; empty = unknown
  std::vector<InterfaceAddress> addresses;  // of its interfaces
  std::string key;                          // public key, base64
  std::string via;                          // "kernel" or "wireguard-go"
  std::uint16_t port = 0;                   // UDP port of its tunnel
  std::vector<std::string> networks;        // networks that it has routes to, "10.1.0.0/16"
};

/// Result of host `from` probing host `to` by UDP.
struct Contact {
  std::string endpoint;   // from which `to` answered; empty = no answer
  bool learned = false;   // endpoint is none of its addresses: there is NAT between the hosts
  std::uint32_t mtu = 0;  // largest tunnel MTU that would get through; 0 = none
  std::uint64_t round_trip_us = 0;
};
/// contacts[from][to]
using Contacts = std::vector<std::vector<Contact>>;

struct Relayed {
  std::size_t a = 0, b = 0, hub = 0;
};

struct Mesh {
  std::string network;  // "10.88.7.0/24"
  int prefix = 24;
  std::vector<std::string> addresses;  // per host, within `network`
  std::uint32_t mtu = 0;
  std::size_t narrow_a = 0, narrow_b = 0;  // the pair that limits the MTU
  std::vector<Relayed> relayed;            // pairs that can not reach each other
};

/// Returns the name of the tunnel device, "sortie-1a2b3c4d". It depends on run, attempt and host.
std::string device_name(const std::string& run_id, std::uint32_t attempt, std::size_t host);

/// Returns endpoints at which `from` may reach `to`, "192.0.2.1:51820", the most likely first, at
/// most 8: its addresses in common networks, the address at which the launcher reached it, its
/// other addresses.
std::vector<std::string> endpoints_for(const MeshHost& from, const MeshHost& to);

/// Chooses a private network that is large enough for all hosts and to which none of them has a
/// route. `seed` determines where the search begins, so that concurrent runs choose different
/// networks. Returns the network and its prefix length. ErrorCode::unsupported if there is none;
/// the message names a host and its route.
Result<std::pair<std::string, int>> choose_network(const std::vector<MeshHost>& hosts,
                                                   std::uint64_t seed);
/// Returns the address of a host in the network.
std::string address_in(const std::string& network, std::size_t host);

/// Plans the mesh. Error: a pair of hosts has no contact and no third host that both can reach. The
/// message names both, the endpoints that were tried, and how to open the firewall.
Result<Mesh> plan_mesh(const std::vector<MeshHost>& hosts, const Contacts& contacts,
                       std::uint64_t seed);

/// Whether two hosts are connected by a direct tunnel.
bool is_direct(const Contacts& contacts, std::size_t a, std::size_t b);

/// Describes the mesh for the user: "10.88.7.0/24, MTU 1420, by the kernel; h1 - h3 relayed by h2".
std::string mesh_text(const std::vector<MeshHost>& hosts, const Mesh& mesh);

}  // namespace sortie::launcher::tunnel
