// Measures the link between two sites as training will use it: several connections at once, in both
// directions, all opened by this side (the other site may block outgoing connections).
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdint>
#include <string>

#include "runner/check/peers.h"

namespace sortie::runner::check {

/// What arrived in one direction. The first quarter of the time is not counted, because connections
/// need some round trips to reach their full rate.
struct WayRate {
  std::uint64_t bytes = 0, us = 0;
  std::uint64_t segments = 0, again = 0;  // sent and retransmitted by the sender's kernel
};

struct LinkFacts {
  PeerFacts reached;
  WayRate out, back;
  std::string rate_error;  // why a reached peer has no rates; empty: it has
};

/// Measures each direction for `duration`. If that is 0, determines only whether the peer is
/// reachable, and its round-trip time.
boost::asio::awaitable<LinkFacts> measure_link(boost::asio::io_context& io, const Peer& peer,
                                               const std::string& token,
                                               std::chrono::milliseconds limit,
                                               std::chrono::milliseconds duration, int streams);

/// Number of digits after the mode byte that give the duration in milliseconds.
inline constexpr std::size_t kDurationDigits = 8;
inline constexpr std::chrono::milliseconds kMaxWay{10000};

/// The listener's side. take_way() receives bytes to the end and answers with statistics.
/// give_way() sends bytes for `duration`; the last ones are its kernel's statistics.
boost::asio::awaitable<void> take_way(boost::asio::ip::tcp::socket& socket,
                                      std::chrono::milliseconds duration);
boost::asio::awaitable<void> give_way(boost::asio::ip::tcp::socket& socket,
                                      std::chrono::milliseconds duration);

}  // namespace sortie::runner::check
