// Who hears whom by UDP, and how large a datagram gets through: each host asks each other one, at
// all addresses that it may have, and answers whoever asks. Before there is a tunnel, on the port
// that it will have, so that what routers and firewalls on the way remember is of use to it; and
// then once more within the tunnel.
#pragma once

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/udp.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::runner::tunnel {

using UdpEndpoint = boost::asio::ip::udp::endpoint;

struct ProbePeer {
  std::uint16_t index = 0;  // its number in the mesh
  std::vector<UdpEndpoint> endpoints;
  std::chrono::milliseconds after{0};  // not before, unless it has asked itself
};

struct ProbeOutcome {
  std::uint16_t index = 0;
  std::optional<UdpEndpoint> endpoint;  // from which it has answered
  bool learned = false;                 // not one that was named: it is behind a translator
  std::size_t size = 0;                 // of the largest datagram that was answered
  std::uint64_t round_trip_us = 0;      // the best one
};

class Prober : public std::enable_shared_from_this<Prober> {
 public:
  static constexpr std::size_t kTokenBytes = 16;
  static constexpr std::size_t kHeaderBytes = 32;
  static constexpr std::size_t kSmall = 64;  // of the datagram that asks whether anybody is there
  using Token = std::array<char, kTokenBytes>;

  /// `me`: the number of this host. Datagrams without the token are not answered.
  Prober(boost::asio::io_context& io, Token token, std::uint16_t me);

  /// Listens on every address, by IPv4 and IPv6. Error: the port is taken.
  Result<> open(std::uint16_t port);
  /// Listens on this address, on any port, which is returned.
  Result<std::uint16_t> open_at(const boost::asio::ip::address& address);
  void close();

  /// Asks all peers at once until all have answered what they can, or the limit. `sizes`: of
  /// datagrams, the largest first.
  boost::asio::awaitable<std::vector<ProbeOutcome>> probe(std::vector<ProbePeer> peers,
                                                          std::vector<std::size_t> sizes,
                                                          std::chrono::milliseconds limit);

 private:
  using Clock = std::chrono::steady_clock;
  struct Candidate {
    UdpEndpoint endpoint;
    bool learned = false;
  };
  struct Target {
    std::uint16_t index = 0;
    Clock::time_point begin;
    std::vector<Candidate> candidates;
    std::optional<std::size_t> chosen;
    std::size_t best = 0;
    std::vector<int> tries;  // per size
    Clock::time_point last_try{};
    std::uint64_t round_trip_us = 0;
  };

  static Result<> bind(boost::asio::ip::udp::socket& socket, const UdpEndpoint& at);
  static void close_if_open(boost::asio::ip::udp::socket& socket);
  boost::asio::awaitable<void> listen(boost::asio::ip::udp::socket& socket);
  void take(std::string_view datagram, const UdpEndpoint& from);
  void take_answer(std::string_view datagram);
  void ask_around(Target& target);
  bool is_done(const Target& target) const;
  std::string datagram(char kind, std::uint16_t to, std::size_t size, std::uint8_t candidate) const;
  /// False: larger than this host's own way out takes.
  bool send(const std::string& bytes, const UdpEndpoint& to);

  boost::asio::io_context& io_;
  const Token token_;
  const std::uint16_t me_;
  boost::asio::ip::udp::socket v4_, v6_;
  std::map<std::uint16_t, UdpEndpoint> heard_;
  std::vector<Target> targets_;
  std::vector<std::size_t> sizes_;
};

/// "192.0.2.1:51820" or "[fd00::1]:51820".
std::optional<UdpEndpoint> parse_endpoint(std::string_view text);
std::string endpoint_text(const UdpEndpoint& endpoint);

}  // namespace sortie::runner::tunnel
