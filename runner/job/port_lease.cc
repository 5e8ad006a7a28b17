#include "runner/job/port_lease.h"

#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <functional>
#include <vector>

#include "common/base/atomic_file.h"
#include "common/wire/message.h"

namespace sortie::runner {
namespace {

constexpr std::uint32_t kFirstPort = 20000;  // services usually listen below
constexpr std::uint32_t kLastPort = 65535;

bool take_number(std::string_view& text, std::uint32_t& number) {
  while (!text.empty() && (text.front() < '0' || text.front() > '9')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

/// Parses "8080,9000-9010" and marks these ports as taken.
void mark_reserved(std::string_view text, std::vector<bool>& taken) {
  std::uint32_t first = 0, last = 0;
  while (take_number(text, first)) {
    last = first;
    if (text.starts_with('-') && !take_number(text, last)) return;
    for (std::uint32_t port = first; port <= last && port <= kLastPort; ++port) taken[port] = true;
  }
}

/// Takes the lease before the port, so that two jobs never try the same port at the same moment.
Result<Fd> take_name(std::uint16_t port) {
  Fd name(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!name) return std::unexpected(os_error(errno, "no socket for the lease of a port"));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string text = fmt::format("sortie-port-{}", port);
  std::memcpy(address.sun_path + 1, text.data(), text.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  if (::bind(name.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) return name;
  if (errno == EADDRINUSE)
    return fail(ErrorCode::unsupported, "another job of Sortie on this host has it");
  return std::unexpected(os_error(errno, "the lease of a port", ErrorCode::unsupported));
}

/// `reuse`: sets SO_REUSEADDR, as a server does that ignores the previous job's closed connections.
Result<Fd> bind_port(std::uint16_t port, bool reuse) {
  Fd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1, off = 0;
  int done = -1;
  if (fd) {
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(port);
    if (reuse) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    done = ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any);
  }
  if (!fd || (done != 0 && errno == EADDRNOTAVAIL)) {  // a host without IPv6
    fd = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_port = htons(port);
    if (fd && reuse) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    done = fd ? ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) : -1;
  }
  if (done == 0) return fd;
  if (errno == EADDRINUSE) return fail(ErrorCode::unsupported, "a process on this host has it");
  return fail(ErrorCode::unsupported, std::strerror(errno));
}

}  // namespace

std::vector<std::uint16_t> port_candidates(std::string_view ephemeral, std::string_view reserved) {
  std::uint32_t low = 32768, high = 60999;  // the kernel's own default
  std::uint32_t first = 0, last = 0;
  if (take_number(ephemeral, first) && take_number(ephemeral, last)) {
    low = first;
    high = last;
  }
  std::vector<bool> taken(kLastPort + 1);
  mark_reserved(reserved, taken);
  std::vector<std::uint16_t> outside, inside;
  for (std::uint32_t port = kFirstPort; port <= kLastPort; ++port)
    if (!taken[port])
      (port < low || port > high ? outside : inside).push_back(static_cast<std::uint16_t>(port));
  return outside.empty() ? inside : outside;
}

Result<PortLease> PortLease::take(std::uint16_t port) {
  PortLease lease;
  SORTIE_ASSIGN_OR_RETURN(lease.name_, take_name(port));
  SORTIE_ASSIGN_OR_RETURN(lease.bound_, bind_port(port, true));
  lease.port_ = port;
  return lease;
}

Result<PortLease> PortLease::take_any(std::span<const std::uint16_t> candidates,
                                      std::uint64_t seed) {
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const std::uint16_t port = candidates[(seed + i) % candidates.size()];
    auto name = take_name(port);
    if (!name) continue;
    auto bound = bind_port(port, false);
    if (!bound) continue;
    PortLease lease;
    lease.name_ = std::move(*name);
    lease.bound_ = std::move(*bound);
    lease.port_ = port;
    return lease;
  }
  return fail(ErrorCode::unsupported,
              fmt::format("none of {} ports is free for MASTER_PORT; end what holds them, or set "
                          "runner.master_port",
                          candidates.size()));
}

Result<PortLease> lease_master_port(std::uint32_t wanted, std::string_view run_id) {
  if (wanted != wire::kAnyPort) {
    auto lease = PortLease::take(static_cast<std::uint16_t>(wanted));
    if (lease) return lease;
    return fail(lease.error().code,
                fmt::format("runner.master_port: {} is not free: {}; choose another one, or 0 to "
                            "have a free one found",
                            wanted, lease.error().message));
  }
  const std::string folder = "/proc/sys/net/ipv4/";
  const auto candidates =
      port_candidates(read_file(folder + "ip_local_port_range", 4096).value_or(std::string()),
                      read_file(folder + "ip_local_reserved_ports").value_or(std::string()));
  return PortLease::take_any(candidates, std::hash<std::string_view>{}(run_id));
}

}  // namespace sortie::runner
