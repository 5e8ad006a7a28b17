// From this host to others: whether they are reachable, how fast, and with what packet size.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "runner/check/path_mtu.h"

namespace sortie::runner::check {

struct Peer {
  std::string name;  // as in the launcher's request
  boost::asio::ip::address address;
  unsigned short port = 0;
};

struct PeerFacts {
  std::string error;  // why it was not reached; empty: it was
  std::uint64_t connect_us = 0;
  std::uint64_t round_trip_us = 0;  // the shortest of a few
  PathMtu mtu;
};

/// Tries all peers concurrently; repeats the attempt once if a peer does not answer within `limit`.
/// The result has the order of `peers`.
boost::asio::awaitable<std::vector<PeerFacts>> reach_peers(boost::asio::io_context& io,
                                                           const std::vector<Peer>& peers,
                                                           const std::string& token,
                                                           std::chrono::milliseconds limit);

struct Bandwidth {
  std::string error;
  std::uint64_t bytes = 0, us = 0;  // as counted by the peer
};

/// Sends at full speed for `duration`.
boost::asio::awaitable<Bandwidth> measure_bandwidth(boost::asio::io_context& io, const Peer& peer,
                                                    const std::string& token,
                                                    std::chrono::milliseconds duration);

}  // namespace sortie::runner::check
