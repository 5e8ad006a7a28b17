#include "launcher/tunnel/mesh.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <set>

#include "common/base/hex.h"
#include "common/files/piece.h"

namespace sortie::launcher::tunnel {
namespace {

constexpr std::size_t kMaxEndpoints = 8;
constexpr std::size_t kMaxShownPairs = 6;
/// MTU of a tunnel over Ethernet and IPv6. A lower MTU is reported.
constexpr std::uint32_t kUsualMtu = 1420;

struct Network {
  std::uint32_t base = 0;  // host byte order
  int bits = 0;
};

/// Address ranges to search for a free network: private ones (RFC 1918), the least used first, and
/// the range for network tests (RFC 2544).
constexpr std::array<Network, 4> kSpaces = {{{0x0a400000, 10},    // 10.64.0.0/10
                                             {0xac100000, 12},    // 172.16.0.0/12
                                             {0xc6120000, 15},    // 198.18.0.0/15
                                             {0xc0a80000, 16}}};  // 192.168.0.0/16

std::uint32_t mask_of(int bits) {
  return bits == 0 ? 0 : ~std::uint32_t{0} << (32 - bits);
}

std::optional<Network> parse_v4_network(const std::string& text) {
  const std::size_t slash = text.find('/');
  in_addr address{};
  if (slash == text.npos || ::inet_pton(AF_INET, text.substr(0, slash).c_str(), &address) != 1)
    return std::nullopt;
  Network network{ntohl(address.s_addr), 0};
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data() + slash + 1, last, network.bits);
  if (error != std::errc() || end != last || network.bits < 0 || network.bits > 32)
    return std::nullopt;
  network.base &= mask_of(network.bits);
  return network;
}

bool overlap(const Network& a, const Network& b) {
  const std::uint32_t mask = mask_of(std::min(a.bits, b.bits));
  return (a.base & mask) == (b.base & mask);
}

std::string v4_text(std::uint32_t address) {
  return fmt::format("{}.{}.{}.{}", address >> 24, address >> 16 & 255, address >> 8 & 255,
                     address & 255);
}

bool in_one_network(const InterfaceAddress& a, const InterfaceAddress& b) {
  if (a.v6 != b.v6 || a.bytes == b.bytes) return false;
  for (int bit = 0; bit < std::min(a.bits, b.bits); ++bit) {
    const auto byte = static_cast<std::size_t>(bit / 8);
    if (((a.bytes[byte] ^ b.bytes[byte]) >> (7 - bit % 8) & 1) != 0) return false;
  }
  return true;
}

std::string endpoint_of(const std::string& address, std::uint16_t port) {
  return address.find(':') != address.npos ? fmt::format("[{}]:{}", address, port)
                                           : fmt::format("{}:{}", address, port);
}

/// Round trip of a direct tunnel, measured by either end.
std::uint64_t round_trip(const Contacts& contacts, std::size_t a, std::size_t b) {
  return std::max(contacts[a][b].round_trip_us, contacts[b][a].round_trip_us);
}

/// Returns the third host with the shortest round trip to both; nullopt if no host reaches both.
std::optional<std::size_t> hub_of(const Contacts& contacts, std::size_t a, std::size_t b) {
  std::optional<std::size_t> best;
  std::uint64_t shortest = 0;
  for (std::size_t i = 0; i < contacts.size(); ++i) {
    if (i == a || i == b || !is_direct(contacts, i, a) || !is_direct(contacts, i, b)) continue;
    const std::uint64_t way = round_trip(contacts, i, a) + round_trip(contacts, i, b);
    if (!best || way < shortest) best = i, shortest = way;
  }
  return best;
}

/// Finds the lowest MTU of all direct tunnels, in either direction, and the pair that has it.
void find_mtu(const Contacts& contacts, Mesh& mesh) {
  for (std::size_t a = 0; a < contacts.size(); ++a)
    for (std::size_t b = 0; b < contacts.size(); ++b) {
      const std::uint32_t mtu = a == b ? 0 : contacts[a][b].mtu;
      if (mtu == 0 || (mesh.mtu != 0 && mtu >= mesh.mtu)) continue;
      mesh.mtu = mtu;
      mesh.narrow_a = a;
      mesh.narrow_b = b;
    }
}

Error no_way(const std::vector<MeshHost>& hosts, const std::vector<Relayed>& pairs) {
  std::string text = fmt::format(
      "runner.network.tunnel: {} of hosts can not reach each other by UDP, and no third host "
      "reaches both; no rank was started",
      pairs.size() == 1 ? "a pair" : fmt::format("{} pairs", pairs.size()));
  std::set<std::uint16_t> ports;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const MeshHost &a = hosts[pairs[i].a], &b = hosts[pairs[i].b];
    ports.insert({a.port, b.port});
    if (i < kMaxShownPairs)
      text += fmt::format("\n  {} - {}: no answer from {}, and none from {}", a.name, b.name,
                          fmt::join(endpoints_for(a, b), " "), fmt::join(endpoints_for(b, a), " "));
  }
  if (pairs.size() > kMaxShownPairs)
    text += fmt::format("\n  and {} pairs more", pairs.size() - kMaxShownPairs);
  text += fmt::format(
      "\nlet UDP port {} in on one host of each pair (`ufw allow {}/udp`, `firewall-cmd "
      "--add-port={}/udp`, or the rules of your cloud), or choose another port "
      "(runner.network.tunnel_port)",
      fmt::join(ports, ", "), *ports.begin(), *ports.begin());
  return {ErrorCode::connect, std::move(text)};
}

}  // namespace

std::string device_name(const std::string& run_id, std::uint32_t attempt, std::size_t host) {
  const auto hash = files::hash_bytes(fmt::format("{} {} {}", run_id, attempt, host));
  return "sortie-" + hex(hash).substr(0, 8);
}

std::vector<std::string> endpoints_for(const MeshHost& from, const MeshHost& to) {
  std::vector<std::string> found;
  const auto add = [&](const std::string& address) {
    std::string endpoint = endpoint_of(address, to.port);
    if (found.size() < kMaxEndpoints && std::ranges::find(found, endpoint) == found.end())
      found.push_back(std::move(endpoint));
  };
  const auto is_ours = [&](const InterfaceAddress& address) {
    return is_loopback(address) ||
           std::ranges::any_of(from.addresses, [&](const InterfaceAddress& own) {
             return own.v6 == address.v6 && own.bytes == address.bytes;
           });
  };
  for (const InterfaceAddress& address : to.addresses)
    if (!is_ours(address) && std::ranges::any_of(from.addresses, [&](const InterfaceAddress& own) {
          return in_one_network(own, address);
        }))
      add(address.address);
  const auto known = std::ranges::find(from.addresses, to.reached_at, &InterfaceAddress::address);
  if (!to.reached_at.empty() && !to.reached_at.starts_with("127.") && to.reached_at != "::1" &&
      known == from.addresses.end())
    add(to.reached_at);
  for (const InterfaceAddress& address : to.addresses)
    if (!is_ours(address)) add(address.address);
  return found;
}

Result<std::pair<std::string, int>> choose_network(const std::vector<MeshHost>& hosts,
                                                   std::uint64_t seed) {
  int bits = 24;  // minus the network and broadcast addresses
  while (bits > 12 && (std::size_t{1} << (32 - bits)) < hosts.size() + 2) --bits;
  std::string clash;
  for (const Network& space : kSpaces) {
    if (space.bits > bits) continue;
    const std::uint32_t count = std::uint32_t{1} << (bits - space.bits);
    std::vector<std::pair<Network, std::string>> taken;
    for (const MeshHost& host : hosts)
      for (const std::string& text : host.networks)
        if (const auto network = parse_v4_network(text);
            network && network->bits > 0 && overlap(*network, space))
          taken.emplace_back(*network, fmt::format("{} has a route to {}", host.name, text));
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto number = static_cast<std::uint32_t>((seed + i) % count);
      const Network candidate{space.base + (number << (32 - bits)), bits};
      const auto met = std::ranges::find_if(
          taken, [&](const auto& one) { return overlap(one.first, candidate); });
      if (met == taken.end())
        return std::pair{fmt::format("{}/{}", v4_text(candidate.base), bits), bits};
      if (clash.empty()) clash = met->second;
    }
  }
  return fail(ErrorCode::unsupported,
              fmt::format("runner.network.tunnel: no private network is free on all hosts ({}); "
                          "remove routes that are wider than they need to be",
                          clash));
}

std::string address_in(const std::string& network, std::size_t host) {
  const auto parsed = parse_v4_network(network);
  return parsed ? v4_text(parsed->base + 1 + static_cast<std::uint32_t>(host)) : std::string();
}

bool is_direct(const Contacts& contacts, std::size_t a, std::size_t b) {
  return !contacts[a][b].endpoint.empty() || !contacts[b][a].endpoint.empty();
}

Result<Mesh> plan_mesh(const std::vector<MeshHost>& hosts, const Contacts& contacts,
                       std::uint64_t seed) {
  Mesh mesh;
  std::vector<Relayed> lost;
  for (std::size_t a = 0; a < hosts.size(); ++a)
    for (std::size_t b = a + 1; b < hosts.size(); ++b) {
      if (is_direct(contacts, a, b)) continue;
      if (const auto hub = hub_of(contacts, a, b))
        mesh.relayed.push_back({a, b, *hub});
      else
        lost.push_back({a, b, a});
    }
  if (!lost.empty()) return std::unexpected(no_way(hosts, lost));
  find_mtu(contacts, mesh);
  if (mesh.mtu == 0)
    return fail(
        ErrorCode::connect,
        fmt::format("runner.network.tunnel: hosts hear each other by UDP, but no way carries "
                    "a packet of 608 bytes; see the MTU of the links of {} and the others",
                    hosts.front().name));
  SORTIE_ASSIGN_OR_RETURN(const auto network, choose_network(hosts, seed));
  mesh.network = network.first;
  mesh.prefix = network.second;
  for (std::size_t i = 0; i < hosts.size(); ++i)
    mesh.addresses.push_back(address_in(mesh.network, i));
  return mesh;
}

std::string mesh_text(const std::vector<MeshHost>& hosts, const Mesh& mesh) {
  std::size_t by_program = 0;
  for (const MeshHost& host : hosts) by_program += host.via == "wireguard-go";
  std::string text = fmt::format(
      "{}, MTU {}, by {}", mesh.network, mesh.mtu,
      by_program == 0 ? "the kernel"
      : by_program == hosts.size()
          ? "wireguard-go"
          : fmt::format("the kernel, on {} of {} hosts by wireguard-go", by_program, hosts.size()));
  if (mesh.mtu < kUsualMtu)
    text += fmt::format(" (the way between {} and {} carries no more than {} bytes)",
                        hosts[mesh.narrow_a].name, hosts[mesh.narrow_b].name, mesh.mtu + 60);
  for (std::size_t i = 0; i < mesh.relayed.size() && i < kMaxShownPairs; ++i)
    text += fmt::format("; {} - {} relayed by {}", hosts[mesh.relayed[i].a].name,
                        hosts[mesh.relayed[i].b].name, hosts[mesh.relayed[i].hub].name);
  if (mesh.relayed.size() > kMaxShownPairs)
    text += fmt::format("; and {} pairs more are relayed", mesh.relayed.size() - kMaxShownPairs);
  return text;
}

}  // namespace sortie::launcher::tunnel
