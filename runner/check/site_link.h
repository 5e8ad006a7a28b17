// The link between two sites, as training will use it: several connections at once, both ways, on
// connections that this side opens (the other one may let nobody out).
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdint>
#include <string>

#include "runner/check/peers.h"

namespace sortie::runner::check {

/// What came through of one way, its start left out: connections need some round trips for their
/// full rate.
struct WayRate {
  std::uint64_t bytes = 0, us = 0;
  std::uint64_t segments = 0, again = 0;  // that the sender's kernel has sent, and sent again
};

struct LinkFacts {
  PeerFacts reached;
  WayRate out, back;
  std::string rate_error;  // why there are no rates, of a peer that was reached
};

/// `duration` of each way; 0: only whether the peer can be reached, and how far away it is.
boost::asio::awaitable<LinkFacts> measure_link(boost::asio::io_context& io, const Peer& peer,
                                               const std::string& token,
                                               std::chrono::milliseconds limit,
                                               std::chrono::milliseconds duration, int streams);

/// The digits after the mode of a connection that says for how long.
inline constexpr std::size_t kDurationDigits = 8;
inline constexpr std::chrono::milliseconds kMaxWay{10000};

/// For the listener. Takes bytes to the end and answers what came; sends bytes for `duration`, of
/// which the last are what its kernel has counted.
boost::asio::awaitable<void> take_way(boost::asio::ip::tcp::socket& socket,
                                      std::chrono::milliseconds duration);
boost::asio::awaitable<void> give_way(boost::asio::ip::tcp::socket& socket,
                                      std::chrono::milliseconds duration);

}  // namespace sortie::runner::check
