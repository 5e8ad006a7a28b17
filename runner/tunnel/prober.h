// Finds out which hosts reach each other by UDP, and with how large datagrams: each host sends
// probes to all possible addresses of each other host and answers the probes of others. This runs
// first before the tunnel exists, on the port that the tunnel will use, so that routers and
// firewalls on the path already know the flow; and once more within the tunnel.
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
  std::chrono::milliseconds after{0};  // delay before the first probe; ends early when a probe of
                                       // this peer arrives
};

struct ProbeOutcome {
  std::uint16_t index = 0;
  std::optional<UdpEndpoint> endpoint;  // that answered; nullopt if none did
  bool learned = false;                 // it is none of ProbePeer::endpoints: the peer is behind
                                        // NAT
  std::size_t size = 0;                 // of the largest datagram that was answered
  std::uint64_t round_trip_us = 0;      // the shortest one
};

class Prober : public std::enable_shared_from_this<Prober> {
 public:
  static constexpr std::size_t kTokenBytes = 16;
  static constexpr std::size_t kHeaderBytes = 32;
  static constexpr std::size_t kSmall = 64;  // size of the first probes
  using Token = std::array<char, kTokenBytes>;

  /// `me`: number of this host in the mesh. Datagrams without the token are ignored.
  Prober(boost::asio::io_context& io, Token token, std::uint16_t me);

  /// Listens on every address, IPv4 and IPv6. Error: the port can not be bound.
  Result<> open(std::uint16_t port);
  /// Listens on `address` and returns the port, which the system chooses.
  Result<std::uint16_t> open_at(const boost::asio::ip::address& address);
  void close();

  /// Probes all peers concurrently until each has answered the sizes that it can, or until `limit`.
  /// `sizes`: sizes of datagrams, in descending order.
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
  /// Returns false if the datagram is too large for this host's interface.
  bool send(const std::string& bytes, const UdpEndpoint& to);

  boost::asio::io_context& io_;
  const Token token_;
  const std::uint16_t me_;
  boost::asio::ip::udp::socket v4_, v6_;
  std::map<std::uint16_t, UdpEndpoint> heard_;
  std::vector<Target> targets_;
  std::vector<std::size_t> sizes_;
};

/// Parses "192.0.2.1:51820" or "[fd00::1]:51820".
std::optional<UdpEndpoint> parse_endpoint(std::string_view text);
std::string endpoint_text(const UdpEndpoint& endpoint);

}  // namespace sortie::runner::tunnel
