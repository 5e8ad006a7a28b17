// The other side of the reachability check: a TCP listener and a UDP socket with the same port
// number, open during the check. A peer without the launcher's token gets no answer and is
// disconnected after two seconds. Answers to datagrams are never larger than the datagram.
#pragma once

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/udp.hpp>
#include <memory>
#include <string>

#include "common/base/result.h"

namespace sortie::runner::check {

inline constexpr std::size_t kTokenSize = 32;
/// The byte that follows the token on a TCP connection.
inline constexpr char kPing = 'p';       // answered with kReady; then each byte is echoed
inline constexpr char kBandwidth = 'b';  // then bytes to the end; answered with number and time
inline constexpr char kReady = 'k';
/// Followed by milliseconds as 8 digits (site_link.h). kTake: receives bytes and answers with
/// statistics. kGive: sends bytes.
inline constexpr char kTake = 't', kGive = 'g';
/// Maximum size of a datagram. It contains the token and padding; the answer is its size as decimal
/// digits.
inline constexpr std::size_t kMaxDatagram = 65535;

inline constexpr std::size_t kBandwidthBlock = 256u << 10;  // size of one read or write

class PeerListener : public std::enable_shared_from_this<PeerListener> {
 public:
  PeerListener(boost::asio::io_context& io, std::string token)
      : io_(io), token_(std::move(token)), acceptor_(io), udp_(io) {}

  /// Listens at `address`, or at all addresses if that is not an address of this host (NAT).
  /// `port`: 0 = any free one.
  Result<> open(const std::string& address, unsigned short port = 0);
  /// Serves until close(). Its coroutines keep this object alive.
  void start();
  void close();
  unsigned short port() const { return port_; }

 private:
  boost::system::error_code bind_both(const boost::asio::ip::address& address, unsigned short port);
  boost::asio::awaitable<void> accept_all();
  boost::asio::awaitable<void> serve(boost::asio::ip::tcp::socket socket);
  boost::asio::awaitable<void> answer_datagrams();
  boost::asio::awaitable<void> answer_pings(boost::asio::ip::tcp::socket& socket);
  boost::asio::awaitable<void> serve_way(boost::asio::ip::tcp::socket& socket, char mode);
  boost::asio::awaitable<void> take_bytes(boost::asio::ip::tcp::socket& socket);
  bool right_token(std::string_view bytes) const;

  boost::asio::io_context& io_;
  const std::string token_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::ip::udp::socket udp_;
  unsigned short port_ = 0;
  std::size_t connections_ = 0;
};

}  // namespace sortie::runner::check
