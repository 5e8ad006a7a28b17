#include "trainer/parallel/socket_meeting.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

namespace sortie::trainer {
namespace {

using Deadline = std::chrono::steady_clock::time_point;
constexpr std::array<char, 8> kMagic = {'s', 'o', 'r', 't', 'i', 'e', '-', 'r'};
constexpr std::chrono::milliseconds kAgain{50};

int milliseconds_to(Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30));
}

Error broken(int code) {
  return os_error(code, "ranks that meet", ErrorCode::lost);
}

/// Waits for the socket; false at the deadline.
bool wait_for(int socket, short events, Deadline deadline) {
  pollfd one{socket, events, 0};
  while (milliseconds_to(deadline) > 0) {
    const int ready = ::poll(&one, 1, std::min(milliseconds_to(deadline), 1000));
    if (ready > 0) return true;
  }
  return false;
}

Result<> write_all(int socket, const void* data, std::size_t size, Deadline deadline) {
  const auto* bytes = static_cast<const char*>(data);
  for (std::size_t sent = 0; sent < size;) {
    const ssize_t count = ::send(socket, bytes + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      sent += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN) {
      if (!wait_for(socket, POLLOUT, deadline)) return std::unexpected(broken(ETIMEDOUT));
    } else if (errno != EINTR) {
      return std::unexpected(broken(errno));
    }
  }
  return {};
}

Result<> read_all(int socket, void* data, std::size_t size, Deadline deadline) {
  auto* bytes = static_cast<char*>(data);
  for (std::size_t got = 0; got < size;) {
    const ssize_t count = ::recv(socket, bytes + got, size - got, MSG_DONTWAIT);
    if (count > 0) {
      got += static_cast<std::size_t>(count);
    } else if (count == 0) {
      return std::unexpected(broken(ECONNRESET));
    } else if (errno == EAGAIN) {
      if (!wait_for(socket, POLLIN, deadline)) return std::unexpected(broken(ETIMEDOUT));
    } else if (errno != EINTR) {
      return std::unexpected(broken(errno));
    }
  }
  return {};
}

void set_host(RankAddress& address, const std::string& host) {
  const std::size_t size = std::min(host.size(), address.host.size() - 1);
  std::copy_n(host.data(), size, address.host.data());
  address.host[size] = '\0';
}

/// The numeric address of a socket's end: getpeername or getsockname.
std::string end_of(int socket, int (*name)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char host[NI_MAXHOST] = "";
  if (name(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof host, nullptr, 0,
                    NI_NUMERICHOST) != 0)
    return "";
  const std::string_view mapped = "::ffff:";
  const std::string_view text = host;
  return std::string(text.starts_with(mapped) ? text.substr(mapped.size()) : text);
}

bool loops_back(const std::string& host) {
  return host.starts_with("127.") || host == "::1";
}

/// Rank 0: accepts a connection of every other rank, which sends its port, and sends all addresses
/// to all.
Result<MetRanks> meet_at_first(int size, const MeetingPlace& place, Fd listener,
                               Deadline deadline) {
  MetRanks met;
  met.addresses.resize(static_cast<std::size_t>(size));
  met.sockets.resize(static_cast<std::size_t>(size));
  set_host(met.addresses[0], place.host);
  met.addresses[0].port = place.port;
  for (int there = 1; there < size;) {
    if (!wait_for(listener.get(), POLLIN, deadline)) {
      std::vector<int> missing;
      for (int rank = 1; rank < size; ++rank)
        if (!met.sockets[static_cast<std::size_t>(rank)]) missing.push_back(rank);
      return fail(
          ErrorCode::timeout,
          fmt::format("rank{} {} did not connect to rank 0 at {} port {}: see what happened "
                      "there, and whether the hosts reach each other",
                      missing.size() == 1 ? "" : "s", fmt::join(missing, ", "), place.host,
                      place.port));
    }
    Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) continue;
    RankGreeting greeting;
    // A foreign client may send nothing; it must not delay the ranks for long.
    const auto soon =
        std::min(deadline, std::chrono::steady_clock::now() + std::chrono::seconds(5));
    if (!read_all(socket.get(), &greeting, sizeof greeting, soon) ||
        !greeting.is_one_of(size, place.secret) || greeting.rank == 0)
      continue;
    tune_rank_socket(socket.get());
    const auto rank = static_cast<std::size_t>(greeting.rank);
    if (met.sockets[rank])
      return fail(ErrorCode::config,
                  fmt::format("two processes say that they are rank {} of the run", rank));
    set_host(met.addresses[rank], end_of(socket.get(), ::getpeername));
    met.addresses[rank].port = greeting.port;
    met.sockets[rank] = std::move(socket);
    ++there;
  }
  // Ranks of this host may have connected from the loopback address, which other hosts can not use.
  std::string outward;
  for (std::size_t rank = 1; rank < met.sockets.size(); ++rank)
    if (!loops_back(met.addresses[rank].host.data()))
      outward = end_of(met.sockets[rank].get(), ::getsockname);
  if (!outward.empty())
    for (std::size_t rank = 1; rank < met.sockets.size(); ++rank)
      if (loops_back(met.addresses[rank].host.data())) set_host(met.addresses[rank], outward);
  for (std::size_t rank = 1; rank < met.sockets.size(); ++rank)
    SORTIE_TRY(write_all(met.sockets[rank].get(), met.addresses.data(),
                         met.addresses.size() * sizeof(RankAddress), deadline));
  met.listener = std::move(listener);
  return met;
}

Result<Fd> connect_to(const addrinfo& place, Deadline deadline) {
  Fd socket(::socket(place.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return std::unexpected(os_error(errno, "a socket"));
  if (::connect(socket.get(), place.ai_addr, place.ai_addrlen) == 0) return socket;
  int code = errno;
  if (code == EINPROGRESS) {
    if (!wait_for(socket.get(), POLLOUT, deadline))
      return std::unexpected(os_error(ETIMEDOUT, "connecting", ErrorCode::connect));
    socklen_t size = sizeof code;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &code, &size);
    if (code == 0) return socket;
  }
  return std::unexpected(os_error(code, "connecting", ErrorCode::connect));
}

}  // namespace

RankGreeting RankGreeting::of(int rank, int size, const std::string& secret, std::uint16_t port) {
  RankGreeting greeting;
  greeting.magic = kMagic;
  std::copy_n(secret.data(), std::min(secret.size(), greeting.secret.size()),
              greeting.secret.data());
  greeting.rank = rank;
  greeting.size = size;
  greeting.port = port;
  return greeting;
}

bool RankGreeting::is_one_of(int ranks, const std::string& expected) const {
  const RankGreeting right = of(rank, ranks, expected, 0);
  unsigned different = 0;  // constant time for any secret
  for (std::size_t i = 0; i < secret.size(); ++i)
    different |= static_cast<unsigned char>(secret[i] ^ right.secret[i]);
  return magic == kMagic && different == 0 && size == ranks && rank >= 0 && rank < ranks;
}

void tune_rank_socket(int socket) {
  const auto set = [socket](int level, int option, int value) {
    (void)::setsockopt(socket, level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

Result<Fd> listen_for_ranks(std::uint16_t& port) {
  for (const int family : {AF_INET6, AF_INET}) {
    Fd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) continue;  // a host without IPv6
    const int yes = 1, no = 0;
    (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_storage address{};
    socklen_t size = sizeof(sockaddr_in);
    if (family == AF_INET6) {
      (void)::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
      size = sizeof(sockaddr_in6);
      reinterpret_cast<sockaddr_in6&>(address).sin6_port = htons(port);
    } else {
      reinterpret_cast<sockaddr_in&>(address).sin_port = htons(port);
    }
    address.ss_family = static_cast<sa_family_t>(family);
    if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
      if (family == AF_INET6 && errno == EADDRNOTAVAIL) continue;
      return std::unexpected(os_error(errno, fmt::format("port {} for the ranks", port)));
    }
    if (::listen(socket.get(), SOMAXCONN) != 0)
      return std::unexpected(os_error(errno, "a socket for the ranks"));
    size = sizeof address;
    ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                    : reinterpret_cast<sockaddr_in&>(address).sin_port);
    return socket;
  }
  return std::unexpected(os_error(errno, "a socket for the ranks"));
}

Result<Fd> dial_rank(const std::string& host, std::uint16_t port, const RankGreeting& greeting,
                     Deadline deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) return fail(ErrorCode::resolve, fmt::format("{}: {}", host, ::gai_strerror(code)));
  Error last;
  for (;;) {  // the other side may not listen yet
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
      Result<Fd> socket = connect_to(*one, deadline);
      if (!socket) {
        last = with_context(socket.error(), fmt::format("{} port {}", host, port));
        continue;
      }
      ::freeaddrinfo(found);
      tune_rank_socket(socket->get());
      SORTIE_TRY(write_all(socket->get(), &greeting, sizeof greeting, deadline));
      return socket;
    }
    if (milliseconds_to(deadline) == 0) break;
    std::this_thread::sleep_for(kAgain);
  }
  ::freeaddrinfo(found);
  return std::unexpected(last);
}

Result<MetRanks> meet_ranks(int rank, int size, const MeetingPlace& place, Fd listener,
                            std::chrono::milliseconds limit) {
  const Deadline deadline = std::chrono::steady_clock::now() + limit;
  if (rank == 0) return meet_at_first(size, place, std::move(listener), deadline);
  MetRanks met;
  std::uint16_t port = 0;
  SORTIE_ASSIGN_OR_RETURN(met.listener, listen_for_ranks(port));
  SORTIE_ASSIGN_OR_RETURN(
      Fd first, dial_rank(place.host, place.port, RankGreeting::of(rank, size, place.secret, port),
                          deadline));
  met.addresses.resize(static_cast<std::size_t>(size));
  const Result<> told = read_all(first.get(), met.addresses.data(),
                                 met.addresses.size() * sizeof(RankAddress), deadline);
  if (!told)
    return std::unexpected(with_context(
        told.error(), fmt::format("rank 0 at {} port {} did not send the list of ranks", place.host,
                                  place.port)));
  for (RankAddress& address : met.addresses) address.host.back() = '\0';
  met.sockets.resize(static_cast<std::size_t>(size));
  met.sockets[0] = std::move(first);
  return met;
}

}  // namespace sortie::trainer
