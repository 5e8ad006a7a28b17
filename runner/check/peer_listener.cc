#include "runner/check/peer_listener.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <charconv>
#include <chrono>
#include <vector>

#include "common/asio/spawn.h"
#include "runner/check/site_link.h"
#include "runner/streams/wakeup.h"

namespace sortie::runner::check {
namespace asio = boost::asio;
using asio::ip::tcp;
using asio::ip::udp;
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxConnections = 512;
constexpr int kMaxPings = 64;
constexpr int kPortTries = 8;
constexpr auto kAcceptPause = std::chrono::milliseconds(20);
constexpr auto kTokenLimit = std::chrono::seconds(2);
constexpr auto kServeLimit = std::chrono::seconds(15);
constexpr auto kWayLimit = std::chrono::seconds(30);

/// Cancels the socket's operations at a deadline. Destroyed with the coroutine that owns it.
class CutOff {
 public:
  CutOff(tcp::socket& socket, std::chrono::steady_clock::duration limit)
      : socket_(socket), timer_(socket.get_executor()) {
    extend(limit);
  }
  ~CutOff() { timer_.cancel(); }
  void extend(std::chrono::steady_clock::duration limit) {
    timer_.expires_after(limit);
    // The socket outlives this object, and a cancelled wait does not touch it.
    timer_.async_wait([alive = std::weak_ptr<tcp::socket*>(handle_)](auto error) {
      const auto socket = alive.lock();
      boost::system::error_code ignored;
      if (!error && socket) (*socket)->cancel(ignored);
    });
  }

 private:
  tcp::socket& socket_;
  std::shared_ptr<tcp::socket*> handle_ = std::make_shared<tcp::socket*>(&socket_);
  asio::steady_timer timer_;
};

}  // namespace

boost::system::error_code PeerListener::bind_both(const asio::ip::address& address,
                                                  unsigned short port) {
  boost::system::error_code error;
  for (int tries = 0; tries < kPortTries; ++tries) {
    acceptor_.close(error);
    udp_.close(error);
    const tcp::endpoint wanted(address, port);
    acceptor_.open(wanted.protocol(), error);
    // The port may have been in use a moment ago, for example by an earlier check.
    if (!error && port != 0) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(wanted, error);
    // Accepted connections must not keep a later listener from the port.
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.listen(128, error);
    if (error) return error;
    port_ = acceptor_.local_endpoint().port();
    const udp::endpoint same(address, port_);
    udp_.open(same.protocol(), error);
    if (!error) udp_.bind(same, error);
    if (!error || port != 0) return error;  // its UDP port is in use: try another
  }
  return error;
}

Result<> PeerListener::open(const std::string& text, unsigned short port) {
  boost::system::error_code error;
  asio::ip::address address = asio::ip::make_address(text, error);
  if (!error) error = bind_both(address, port);
  if (error) {
    const bool v6 = address.is_v6();
    address = v6 ? asio::ip::address(asio::ip::address_v6::any())
                 : asio::ip::address(asio::ip::address_v4::any());
    error = bind_both(address, port);
  }
  if (error) return fail(ErrorCode::io, "listen for the other hosts: " + error.message());
  return {};
}

void PeerListener::start() {
  spawn(io_, accept_all());
  spawn(io_, answer_datagrams());
}

void PeerListener::close() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  udp_.close(ignored);
}

/// Constant-time comparison with the token.
bool PeerListener::right_token(std::string_view bytes) const {
  if (bytes.size() < kTokenSize || token_.size() != kTokenSize) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < kTokenSize; ++i)
    difference |= static_cast<unsigned char>(bytes[i]) ^ static_cast<unsigned char>(token_[i]);
  return difference == 0;
}

asio::awaitable<void> PeerListener::accept_all() {
  const auto self = shared_from_this();
  while (acceptor_.is_open()) {
    auto [error, socket] = co_await acceptor_.async_accept(kToken);
    if (error == asio::error::operation_aborted || !acceptor_.is_open()) co_return;
    if (error) {  // out of descriptors: the connection stays pending, so do not spin
      asio::steady_timer pause(io_, kAcceptPause);
      co_await pause.async_wait(kToken);
      continue;
    }
    if (connections_ < kMaxConnections) spawn(io_, serve(std::move(socket)));
  }
}

asio::awaitable<void> PeerListener::serve(tcp::socket socket) {
  const auto self = shared_from_this();
  ++connections_;
  {
    CutOff cut_off(socket, kTokenLimit);
    std::array<char, kTokenSize + 1> opening;
    const auto buffer = asio::buffer(opening);
    const auto [error, count] = co_await asio::async_read(socket, buffer, kToken);
    if (!error && right_token({opening.data(), opening.size()})) {
      cut_off.extend(kServeLimit);
      if (opening[kTokenSize] == kPing) co_await answer_pings(socket);
      if (opening[kTokenSize] == kBandwidth) co_await take_bytes(socket);
      if (opening[kTokenSize] == kTake || opening[kTokenSize] == kGive) {
        cut_off.extend(kWayLimit);
        co_await serve_way(socket, opening[kTokenSize]);
      }
    }
  }
  --connections_;
}

asio::awaitable<void> PeerListener::answer_pings(tcp::socket& socket) {
  boost::system::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  char byte = kReady;
  const auto buffer = asio::buffer(&byte, 1);
  for (int i = 0; i < kMaxPings; ++i) {
    const auto [write_error, written] = co_await asio::async_write(socket, buffer, kToken);
    if (write_error) co_return;
    const auto [read_error, count] = co_await socket.async_read_some(buffer, kToken);
    if (read_error) co_return;
  }
}

asio::awaitable<void> PeerListener::serve_way(tcp::socket& socket, char mode) {
  std::array<char, kDurationDigits> digits;
  const auto buffer = asio::buffer(digits);
  const auto [error, count] = co_await asio::async_read(socket, buffer, kToken);
  std::int64_t ms = 0;
  const char* const end = digits.data() + digits.size();
  if (error || std::from_chars(digits.data(), end, ms).ptr != end || ms < 0 || ms > kMaxWay.count())
    co_return;
  const std::chrono::milliseconds duration(ms);
  if (mode == kTake)
    co_await take_way(socket, duration);
  else
    co_await give_way(socket, duration);
}

asio::awaitable<void> PeerListener::take_bytes(tcp::socket& socket) {
  std::vector<char> block(kBandwidthBlock);
  const auto buffer = asio::buffer(block);
  std::uint64_t bytes = 0;
  const auto begin = Clock::now();
  for (;;) {
    const auto [error, count] = co_await socket.async_read_some(buffer, kToken);
    bytes += count;
    if (error == asio::error::eof) break;
    if (error) co_return;
  }
  const auto took = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin);
  const std::string answer = fmt::format("{} {}\n", bytes, took.count());
  const auto out = asio::buffer(answer);
  co_await asio::async_write(socket, out, kToken);
}

asio::awaitable<void> PeerListener::answer_datagrams() {
  const auto self = shared_from_this();
  std::vector<char> bytes(kMaxDatagram);
  const auto buffer = asio::buffer(bytes);
  udp::endpoint from;
  while (udp_.is_open()) {
    const auto [error, count] = co_await udp_.async_receive_from(buffer, from, kToken);
    if (error == asio::error::operation_aborted || !udp_.is_open()) co_return;
    if (error || !right_token({bytes.data(), count})) continue;
    const std::string answer = fmt::format("{}", count);
    const auto out = asio::buffer(answer);
    co_await udp_.async_send_to(out, from, kToken);
  }
}

}  // namespace sortie::runner::check
