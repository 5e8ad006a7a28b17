#include "launcher/supervise/meeting.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

namespace sortie::launcher {
namespace {

constexpr std::size_t kMaxLines = 1024;
constexpr std::size_t kMaxInterfaceName = 15;
constexpr std::size_t kMaxShownHosts = 8;

/// Parses "10.1.0.2/24"; also the address alone unless `bits_needed`.
std::optional<InterfaceAddress> parse_network(std::string_view text, bool bits_needed) {
  InterfaceAddress out;
  const std::size_t slash = text.find('/');
  out.address = std::string(text.substr(0, slash));
  if (::inet_pton(AF_INET, out.address.c_str(), out.bytes.data()) != 1) {
    out.v6 = true;
    if (::inet_pton(AF_INET6, out.address.c_str(), out.bytes.data()) != 1) return std::nullopt;
  }
  const int most = out.v6 ? 128 : 32;
  out.bits = most;
  if (slash == text.npos) return bits_needed ? std::nullopt : std::optional(out);
  const std::string_view bits = text.substr(slash + 1);
  const auto [end, error] = std::from_chars(bits.data(), bits.data() + bits.size(), out.bits);
  if (error != std::errc() || end != bits.data() + bits.size() || out.bits < 0 || out.bits > most)
    return std::nullopt;
  return out;
}

/// Whether `address` is in the network of `network`.
bool in_network(const InterfaceAddress& address, const InterfaceAddress& network) {
  if (address.v6 != network.v6) return false;
  const auto whole = static_cast<std::size_t>(network.bits / 8);
  if (std::memcmp(address.bytes.data(), network.bytes.data(), whole) != 0) return false;
  const int rest = network.bits % 8;
  return rest == 0 || ((address.bytes[whole] ^ network.bytes[whole]) >> (8 - rest)) == 0;
}

bool has_address(const HostNetwork& host, const InterfaceAddress& wanted) {
  return std::ranges::any_of(host.addresses, [&](const InterfaceAddress& own) {
    return own.v6 == wanted.v6 && own.bytes == wanted.bytes;
  });
}

/// Prefers IPv4, because many programs support nothing else.
const InterfaceAddress& preferred(const std::vector<InterfaceAddress>& addresses) {
  const auto v4 = std::ranges::find(addresses, false, &InterfaceAddress::v6);
  return v4 == addresses.end() ? addresses.front() : *v4;
}

/// Addresses of the first host that are candidates for MASTER_ADDR: not the loopback, and not an
/// address that another host has, too (the bridge of a container engine is 172.17.0.1 everywhere).
std::vector<InterfaceAddress> own_addresses(const std::vector<HostNetwork>& hosts) {
  std::vector<InterfaceAddress> own;
  for (const InterfaceAddress& address : hosts[0].addresses)
    if (!is_loopback(address) &&
        std::none_of(hosts.begin() + 1, hosts.end(),
                     [&](const HostNetwork& host) { return has_address(host, address); }))
      own.push_back(address);
  return own;
}

/// Whether all hosts are the same machine under several names.
bool one_machine(const std::vector<HostNetwork>& hosts) {
  return std::ranges::all_of(hosts, [&](const HostNetwork& host) {
    return host.hostname == hosts[0].hostname &&
           host.addresses.size() == hosts[0].addresses.size() &&
           std::ranges::all_of(host.addresses, [&](const InterfaceAddress& address) {
             return has_address(hosts[0], address);
           });
  });
}

/// Chooses the source address of most routes from the first host to the others.
std::optional<Meeting> by_routes(const std::vector<HostNetwork>& hosts,
                                 const std::vector<InterfaceAddress>& own) {
  std::vector<std::size_t> counts(own.size());
  std::size_t routes = 0;
  for (const auto& [peer, from] : hosts[0].routes) {
    const auto found = std::ranges::find(own, from, &InterfaceAddress::address);
    if (found == own.end()) continue;
    ++routes;
    ++counts[static_cast<std::size_t>(found - own.begin())];
  }
  if (routes == 0) return std::nullopt;
  const auto best = std::ranges::max_element(counts);
  const InterfaceAddress& address = own[static_cast<std::size_t>(best - counts.begin())];
  return Meeting{address.address,
                 fmt::format("{} of {}: the route to {} of {} hosts", address.interface,
                             hosts[0].name, *best, hosts.size() - 1),
                 *best < routes};
}

std::optional<Meeting> by_common_network(const std::vector<HostNetwork>& hosts,
                                         const std::vector<InterfaceAddress>& own) {
  for (const InterfaceAddress& address : own) {
    const bool everywhere =
        std::all_of(hosts.begin() + 1, hosts.end(), [&](const HostNetwork& host) {
          return std::ranges::any_of(host.addresses, [&](const InterfaceAddress& other) {
            return in_network(other, address);
          });
        });
    if (everywhere)
      return Meeting{address.address, fmt::format("{} of {}: every host is in its network",
                                                  address.interface, hosts[0].name)};
  }
  return std::nullopt;
}

std::string list_of(const std::vector<InterfaceAddress>& addresses) {
  std::string text;
  for (const InterfaceAddress& address : addresses)
    text += fmt::format("{}{} {}/{}", text.empty() ? "" : ", ", address.interface, address.address,
                        address.bits);
  return text.empty() ? "nothing" : text;
}

Result<> check_interface_everywhere(const std::vector<HostNetwork>& hosts,
                                    const std::string& interface) {
  std::vector<std::string> lacking, lists;
  for (const HostNetwork& host : hosts) {
    if (!matching(host.addresses, interface).empty()) continue;
    lacking.push_back(host.name);
    if (lacking.size() <= kMaxShownHosts)
      lists.push_back(fmt::format("\n  {} has {}", host.name, list_of(host.addresses)));
  }
  if (lacking.empty()) return {};
  if (lacking.size() > kMaxShownHosts)
    lists.push_back(fmt::format("\n  and {} hosts more", lacking.size() - kMaxShownHosts));
  return fail(
      ErrorCode::unsupported,
      fmt::format("runner.network.interface: no address of {} matches {}; name an interface "
                  "or a network that every host has{}",
                  config::fold_host_names(lacking), interface, fmt::join(lists, "")));
}

}  // namespace

bool is_loopback(const InterfaceAddress& address) {
  if (!address.v6) return address.bytes[0] == 127;
  return std::all_of(address.bytes.begin(), address.bytes.end() - 1,
                     [](unsigned char byte) { return byte == 0; });
}

Result<std::vector<InterfaceAddress>> parse_addresses(const std::vector<std::string>& lines) {
  std::vector<InterfaceAddress> addresses;
  for (const std::string& line : lines) {
    const std::size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    const bool named = space != line.npos && !name.empty() && name.size() <= kMaxInterfaceName &&
                       std::ranges::all_of(name, [](char c) { return c > 0x20 && c < 0x7f; });
    auto parsed = named ? parse_network(std::string_view(line).substr(space + 1), true)
                        : std::optional<InterfaceAddress>();
    if (!parsed || addresses.size() >= kMaxLines)
      return fail(ErrorCode::protocol, "runner sent interface addresses outside the grammar");
    parsed->interface = name;
    addresses.push_back(std::move(*parsed));
  }
  return addresses;
}

std::vector<InterfaceAddress> matching(const std::vector<InterfaceAddress>& addresses,
                                       const std::string& wanted) {
  std::vector<InterfaceAddress> found;
  const auto network = wanted.find('/') != wanted.npos ? parse_network(wanted, true) : std::nullopt;
  for (const InterfaceAddress& address : addresses)
    if (network ? in_network(address, *network) : matches_pattern(wanted, address.interface))
      found.push_back(address);
  return found;
}

Result<Meeting> choose_meeting(const std::vector<HostNetwork>& hosts,
                               const std::string& interface) {
  const HostNetwork& first = hosts.front();
  if (!interface.empty()) {
    SORTIE_TRY(check_interface_everywhere(hosts, interface));
    const InterfaceAddress chosen = preferred(matching(first.addresses, interface));
    if (hosts.size() == 1 || one_machine(hosts) || !is_loopback(chosen))
      return Meeting{chosen.address, "runner.network.interface: " + chosen.interface};
    return fail(ErrorCode::unsupported,
                fmt::format("runner.network.interface: {} of {} is the loopback, which other hosts "
                            "can not reach; name another one",
                            chosen.interface, first.name));
  }
  if (hosts.size() == 1 || one_machine(hosts)) return Meeting{"127.0.0.1", "one host"};
  const std::vector<InterfaceAddress> own = own_addresses(hosts);
  if (auto meeting = by_routes(hosts, own)) return *meeting;
  if (auto meeting = by_common_network(hosts, own)) return *meeting;
  const auto reached = std::ranges::find(own, first.reached_at, &InterfaceAddress::address);
  if (reached != own.end())
    return Meeting{reached->address, reached->interface + ": as this machine reaches it"};
  if (own.size() == 1) return Meeting{own[0].address, own[0].interface + ": its only address"};
  return Meeting{first.name == "localhost" ? first.hostname : first.name,
                 own.empty()
                     ? "its name: it reports no address that other hosts could use"
                     : fmt::format("its name: of {}, none is known to be reachable for the others",
                                   list_of(own)),
                 true};
}

Environment interface_environment(const HostNetwork& host, const std::string& interface,
                                  const Environment& user) {
  const std::vector<InterfaceAddress> found = matching(host.addresses, interface);
  if (interface.empty() || found.empty()) return {};
  std::vector<std::string> names;
  for (const InterfaceAddress& address : found) {
    const std::string name = address.interface.substr(0, address.interface.find(':'));  // an alias
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  const std::string main = preferred(found).interface;
  const std::string one = main.substr(0, main.find(':'));
  const std::string all = fmt::format("{}", fmt::join(names, ","));
  const auto set = [&user](std::string_view name) {
    return std::ranges::find(user, name, &Environment::value_type::first) != user.end();
  };
  Environment env;
  const auto put = [&](const char* name, const std::string& value) {
    if (!set(name)) env.emplace_back(name, value);
  };
  put("NCCL_SOCKET_IFNAME", "=" + all);  // '=': exact names instead of prefixes
  put("GLOO_SOCKET_IFNAME", one);
  put("TP_SOCKET_IFNAME", one);
  // Open MPI also accepts networks. It rejects the combination of include and exclude.
  if (!set("OMPI_MCA_btl_tcp_if_exclude"))
    put("OMPI_MCA_btl_tcp_if_include", interface.find('/') != interface.npos ? interface : all);
  return env;
}

std::vector<std::string> peers_of_first(const std::vector<std::string>& reached_at) {
  std::vector<std::string> peers;
  for (std::size_t i = 1; i < reached_at.size(); ++i) {
    const auto address = parse_network(reached_at[i], false);
    if (address && !is_loopback(*address)) peers.push_back(address->address);
  }
  return peers;
}

}  // namespace sortie::launcher
