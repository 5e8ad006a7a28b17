#include "runner/check/path_mtu.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <chrono>

#include "runner/check/peer_listener.h"
#include "runner/never_fragment.h"
#include "runner/streams/wakeup.h"

namespace sortie::runner::check {
namespace asio = boost::asio;
using asio::ip::udp;
namespace {

using std::chrono::milliseconds;

constexpr unsigned kSmall = 576;  // supported by every path
/// Typical sizes below the interface's MTU: jumbo frames, Ethernet, PPPoE, tunnels.
constexpr std::array<unsigned, 9> kUsual = {9000, 8900, 4096, 1500, 1492, 1450, 1400, 1280, kSmall};
constexpr int kTries = 3;
constexpr milliseconds kWait{200};

unsigned headers(bool v6) {
  return v6 ? 48 : 28;
}

unsigned kernel_mtu(udp::socket& socket, bool v6) {
  int value = 0;
  socklen_t length = sizeof value;
  const bool known = ::getsockopt(socket.native_handle(), v6 ? IPPROTO_IPV6 : IPPROTO_IP,
                                  v6 ? IPV6_MTU : IP_MTU, &value, &length) == 0;
  return known && value > 0 ? static_cast<unsigned>(value) : 0;
}

/// Whether a packet of `size` is answered with exactly that size.
asio::awaitable<bool> passes(udp::socket& socket, const std::string& token, unsigned size,
                             bool v6) {
  const std::size_t payload = std::min<std::size_t>(size, kMaxDatagram) - headers(v6);
  std::string datagram = token;
  datagram.resize(payload, 'm');
  const auto out = asio::buffer(datagram);
  std::array<char, 16> answer;
  const auto in = asio::buffer(answer);
  asio::steady_timer timer(socket.get_executor());
  for (int i = 0; i < kTries; ++i) {
    const auto [sent_error, sent] = co_await socket.async_send(out, kToken);
    if (sent_error == asio::error::message_size) co_return false;
    timer.expires_after(kWait);
    timer.async_wait([&socket](boost::system::error_code cancelled) {
      boost::system::error_code ignored;
      if (!cancelled) socket.cancel(ignored);
    });
    bool answered = false;
    for (;;) {
      const auto [error, count] = co_await socket.async_receive(in, kToken);
      if (error) break;  // timeout or ICMP error: try again
      std::size_t got = 0;
      std::from_chars(answer.data(), answer.data() + count, got);
      answered = got == payload;
      if (answered) break;
    }
    // A handler that is already queued may still run; the socket outlives it, because the caller
    // owns it.
    timer.cancel();
    if (answered) co_return true;
  }
  co_return false;
}

}  // namespace

asio::awaitable<PathMtu> find_path_mtu(asio::io_context& io, udp::endpoint peer,
                                       const std::string& token) {
  PathMtu found;
  const bool v6 = peer.address().is_v6();
  udp::socket socket(io);
  boost::system::error_code error;
  socket.open(peer.protocol(), error);
  if (!error) socket.connect(peer, error);
  if (error) co_return found;
  never_fragment(socket.native_handle(), v6);
  found.own = kernel_mtu(socket, v6);
  if (found.own < kSmall) co_return found;
  bool whole = co_await passes(socket, token, found.own, v6);
  const bool answers = whole || co_await passes(socket, token, kSmall, v6);
  // A peer that was busy for a moment may have missed only the large packets: try once more.
  if (!whole && answers) whole = co_await passes(socket, token, found.own, v6);
  if (whole) {
    found.path = found.own;
  } else if (answers) {
    for (const unsigned size : kUsual) {
      if (size >= found.own) continue;
      found.path = size;
      if (size == kSmall || co_await passes(socket, token, size, v6)) break;
    }
    found.reported = kernel_mtu(socket, v6) < found.own;
  }
  // Let handlers of cancelled timers run before the socket is destroyed.
  asio::steady_timer last(io, milliseconds(0));
  co_await last.async_wait(kToken);
  co_return found;
}

}  // namespace sortie::runner::check
