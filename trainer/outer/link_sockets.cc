#include "trainer/outer/link_sockets.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <linux/tcp.h>  // glibc's tcp_info lacks the counts of bytes and segments
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "common/training/outer.h"

namespace sortie::trainer::outer {
namespace {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

SocketAddress ipv4(in_addr address, std::uint16_t port) {
  SocketAddress out;
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_addr = address;
  in.sin_port = htons(port);
  std::memcpy(&out.storage, &in, sizeof in);
  out.size = sizeof in;
  return out;
}

SocketAddress ipv6(const in6_addr& address, std::uint16_t port) {
  SocketAddress out;
  sockaddr_in6 in{};
  in.sin6_family = AF_INET6;
  in.sin6_addr = address;
  in.sin6_port = htons(port);
  std::memcpy(&out.storage, &in, sizeof in);
  out.size = sizeof in;
  return out;
}

const sockaddr* raw(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

Result<SocketAddress> parse_link_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  std::uint16_t port = 0;
  if (colon != std::string::npos)
    std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
  if (port != 0 && text[0] == '[' && colon > 2) {
    in6_addr address{};
    if (::inet_pton(AF_INET6, text.substr(1, colon - 2).c_str(), &address) == 1)
      return ipv6(address, port);
  } else if (port != 0) {
    in_addr address{};
    if (::inet_pton(AF_INET, text.substr(0, colon).c_str(), &address) == 1)
      return ipv4(address, port);
  }
  return fail(ErrorCode::protocol, fmt::format("{}: no numeric address with a port", text));
}

std::string numeric_host(const sockaddr_storage& storage) {
  char text[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &storage, sizeof in);
    ::inet_ntop(AF_INET, &in.sin_addr, text, sizeof text);
  } else {
    sockaddr_in6 in{};
    std::memcpy(&in, &storage, sizeof in);
    ::inet_ntop(AF_INET6, &in.sin6_addr, text, sizeof text);
  }
  return text;
}

/// A connected datagram socket knows its own address without having sent anything.
std::string source_address_towards(const std::string& address) {
  const auto to = parse_link_address(address);
  if (!to) return {};
  const Fd socket(::socket(to->storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (!socket || ::connect(socket.get(), raw(*to), to->size) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0)
    return {};
  return numeric_host(own);
}

std::uint16_t port_of(const sockaddr_storage& storage) {  // the same offset in both families
  sockaddr_in in{};
  std::memcpy(&in, &storage, sizeof in);
  return ntohs(in.sin_port);
}

}  // namespace

Result<Listener> listen_for_links(std::uint16_t port, bool only_here) {
  constexpr int kBacklog = 256;
  constexpr int kOn = 1, kOff = 0;
  int failed = 0;
  // IPv6 may be disabled.
  for (const bool both : {true, false}) {
    if (both && only_here) continue;
    Fd socket(::socket(both ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const SocketAddress any =
        both ? ipv6(in6addr_any, port)
             : ipv4(in_addr{only_here ? htonl(INADDR_LOOPBACK) : INADDR_ANY}, port);
    if (socket) {
      ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof kOn);
      if (both) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &kOff, sizeof kOff);
    }
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    if (socket && ::bind(socket.get(), raw(any), any.size) == 0 &&
        ::listen(socket.get(), kBacklog) == 0 &&
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0)
      return Listener{std::move(socket), port_of(own)};
    failed = errno;
    if (failed == EADDRINUSE || failed == EACCES) break;
  }
  return fail(
      ErrorCode::io,
      fmt::format("outer.port {}: can not listen for other sites: {}; choose a port that is "
                  "free, or 0 for any",
                  port, std::strerror(failed)));
}

std::string link_address(const std::string& host, std::uint16_t port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

std::string outward_address() {
  for (const char* far : {"192.0.2.1:9", "[2001:db8::1]:9"})  // documentation addresses
    if (std::string own = source_address_towards(far); !own.empty()) return own;
  return "127.0.0.1";
}

Result<Fd> dial_link(const std::string& address) {
  SORTIE_ASSIGN_OR_RETURN(const SocketAddress to, parse_link_address(address));
  Fd socket(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket ||
      (::connect(socket.get(), raw(to), to.size) != 0 && errno != EINPROGRESS && errno != EINTR))
    return std::unexpected(os_error(errno, address, ErrorCode::connect));
  return socket;
}

Result<Fd> dial_through_launcher(const std::string& forward, const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || !address.starts_with(training::kThroughLauncher) ||
      address.find(' ') != std::string::npos)
    return fail(ErrorCode::protocol,
                fmt::format("{}: is not reached through the launcher; all sites have the same "
                            "outer.route",
                            address));
  const std::string host =
      address.substr(training::kThroughLauncher.size(), colon - training::kThroughLauncher.size());
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  if (forward.size() >= sizeof to.sun_path)
    return fail(ErrorCode::io, forward + ": longer than a socket's path may be");
  std::memcpy(to.sun_path, forward.c_str(), forward.size() + 1);
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
    return std::unexpected(os_error(errno, forward, ErrorCode::connect));
  const std::string request = fmt::format("{} {}\n", host, address.substr(colon + 1));
  // A new socket has room for these bytes.
  if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size()))
    return std::unexpected(os_error(errno, forward, ErrorCode::connect));
  return socket;
}

Result<> dialled(int socket) {
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return fail(ErrorCode::connect, std::strerror(error));
  return {};
}

void tune_link(int socket) {
  constexpr int kOn = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof kOn);
}

WireCount wire_count(int socket) {
  constexpr std::uint64_t kEthernet = 14, kIpv4 = 20, kIpv6 = 40, kTcp = 20, kTimestamps = 12;
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      size < offsetof(tcp_info, tcpi_bytes_sent) + sizeof info.tcpi_bytes_sent)
    return {};
  sockaddr_storage peer{};
  socklen_t peer_size = sizeof peer;
  ::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_size);
  in6_addr address{};
  if (peer.ss_family == AF_INET6) {
    sockaddr_in6 in{};
    std::memcpy(&in, &peer, sizeof in);
    address = in.sin6_addr;
  }
  const bool is_ipv6 = peer.ss_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&address);
  const std::uint64_t header = kEthernet + (is_ipv6 ? kIpv6 : kIpv4) + kTcp +
                               ((info.tcpi_options & TCPI_OPT_TIMESTAMPS) != 0 ? kTimestamps : 0);
  WireCount count;
  count.sent = info.tcpi_bytes_sent + info.tcpi_segs_out * header;
  count.received = info.tcpi_bytes_received + info.tcpi_segs_in * header;
  count.retransmitted = info.tcpi_total_retrans;
  return count;
}

}  // namespace sortie::trainer::outer
