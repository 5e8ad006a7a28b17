#include "runner/job/network.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <bit>
#include <cstring>
#include <memory>
#include <span>

#include "common/base/fd.h"

namespace sortie::runner {
namespace {

constexpr std::size_t kMaxAddresses = 1024;

/// The bytes of an IPv4 or IPv6 address within a sockaddr; none for another family.
std::span<const unsigned char> address_bytes(const sockaddr* address) {
  if (address && address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return {reinterpret_cast<const unsigned char*>(&v4->sin_addr), sizeof v4->sin_addr};
  }
  if (address && address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    return {reinterpret_cast<const unsigned char*>(&v6->sin6_addr), sizeof v6->sin6_addr};
  }
  return {};
}

std::string address_text(const sockaddr* address) {
  const std::span<const unsigned char> bytes = address_bytes(address);
  char text[INET6_ADDRSTRLEN] = "";
  if (bytes.empty() || !::inet_ntop(address->sa_family, bytes.data(), text, sizeof text)) return "";
  return text;
}

/// Fills in a numeric address with the discard port. Returns its length, 0 if `text` is no address.
/// (getaddrinfo would pull the name service into a static program.)
socklen_t make_address(const std::string& text, sockaddr_storage& address) {
  address = {};
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address);
  if (::inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(9);
    return sizeof *v4;
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address);
  if (::inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) != 1) return 0;
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(9);
  return sizeof *v6;
}

}  // namespace

std::vector<std::string> interface_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::vector<std::string> lines;
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    if (!(entry->ifa_flags & IFF_UP) || lines.size() >= kMaxAddresses) continue;
    const std::string text = address_text(entry->ifa_addr);
    if (text.empty()) continue;
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
    if (entry->ifa_addr->sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) continue;
    int bits = 0;
    for (const unsigned char byte : address_bytes(entry->ifa_netmask)) bits += std::popcount(byte);
    lines.push_back(fmt::format("{} {}/{}", entry->ifa_name, text, bits));
  }
  return lines;
}

std::string address_towards(const std::string& peer) {
  sockaddr_storage address{};
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = make_address(peer, address);
  if (length == 0) return "";
  const Fd socket(::socket(address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // connect() on a datagram socket only chooses the route.
  if (!socket || ::connect(socket.get(), generic, length) != 0) return "";
  length = sizeof address;
  if (::getsockname(socket.get(), generic, &length) != 0) return "";
  return address_text(generic);
}

std::vector<std::pair<std::string, std::string>> routes_to(const std::vector<std::string>& peers) {
  std::vector<std::pair<std::string, std::string>> routes;
  for (const std::string& peer : peers)
    if (std::string mine = address_towards(peer); !mine.empty())
      routes.emplace_back(peer, std::move(mine));
  return routes;
}

}  // namespace sortie::runner
