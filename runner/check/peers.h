// From this host to others: can they be reached, how fast, with how large packets.
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
  std::string name;  // as the launcher has it
  boost::asio::ip::address address;
  unsigned short port = 0;
};

struct PeerFacts {
  std::string error;  // why it was not reached
  std::uint64_t connect_us = 0;
  std::uint64_t round_trip_us = 0;  // the best of a few
  PathMtu mtu;
};

/// All peers at once; each is given up after `limit`. Same order as `peers`.
boost::asio::awaitable<std::vector<PeerFacts>> reach_peers(boost::asio::io_context& io,
                                                           const std::vector<Peer>& peers,
                                                           const std::string& token,
                                                           std::chrono::milliseconds limit);

struct Bandwidth {
  std::string error;
  std::uint64_t bytes = 0, us = 0;  // as the peer counted them
};

/// Sends as much as it takes in `duration`.
boost::asio::awaitable<Bandwidth> measure_bandwidth(boost::asio::io_context& io, const Peer& peer,
                                                    const std::string& token,
                                                    std::chrono::milliseconds duration);

}  // namespace sortie::runner::check
