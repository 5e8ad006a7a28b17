// A mesh of WireGuard between the hosts of a job: who is reached where, by whom, and with which
// addresses; decided by the launcher from what the hosts have found out. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "launcher/supervise/meeting.h"

namespace sortie::launcher::tunnel {

/// One host, as far as it is known.
struct MeshHost {
  std::string name;
  std::string reached_at;                   // by this launcher; empty = not known
  std::vector<InterfaceAddress> addresses;  // its own
  std::string key;                          // public, base64
  std::string via;                          // "kernel" or "wireguard-go"
  std::uint16_t port = 0;                   // UDP, of its tunnel
  std::vector<std::string> networks;        // "10.1.0.0/16", that it has routes to
};

/// What host `from` has found out about host `to` by UDP.
struct Contact {
  std::string endpoint;   // from which `to` has answered; empty: it has not
  bool learned = false;   // that is none of its addresses: an address translator is between them
  std::uint32_t mtu = 0;  // of the largest packet in a tunnel that would get through; 0: none
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
  std::vector<std::string> addresses;  // per host, within it
  std::uint32_t mtu = 0;
  std::size_t narrow_a = 0, narrow_b = 0;  // the pair that decides on the MTU
  std::vector<Relayed> relayed;            // pairs that do not hear each other
};

/// "sortie-1a2b3c4d": differs between runs, attempts and hosts.
std::string device_name(const std::string& run_id, std::uint32_t attempt, std::size_t host);

/// "192.0.2.1:51820": where `from` may reach `to`, the likeliest first, at most 8: its addresses in
/// networks that both are in, where this launcher has reached it, its other addresses.
std::vector<std::string> endpoints_for(const MeshHost& from, const MeshHost& to);

/// A private network with room for all hosts that none of them has a route into; `seed` decides
/// where the search begins, so that runs at the same time begin elsewhere. Error: there is none; it
/// names a host and its route.
Result<std::pair<std::string, int>> choose_network(const std::vector<MeshHost>& hosts,
                                                   std::uint64_t seed);
/// The address of a host within it.
std::string address_in(const std::string& network, std::size_t host);

/// Error: a pair without a contact and without a third host that both have one to; it names both,
/// where they were looked for, and what lets them through.
Result<Mesh> plan_mesh(const std::vector<MeshHost>& hosts, const Contacts& contacts,
                       std::uint64_t seed);

/// Whether two hosts are at the ends of one tunnel.
bool is_direct(const Contacts& contacts, std::size_t a, std::size_t b);

/// What a person reads when it is up: "10.88.7.0/24, MTU 1420, by the kernel; h1 - h3 by way of
/// h2".
std::string mesh_text(const std::vector<MeshHost>& hosts, const Mesh& mesh);

}  // namespace sortie::launcher::tunnel
