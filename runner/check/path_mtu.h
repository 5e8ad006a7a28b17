// Finds the largest IP packet that reaches a peer and is answered, by sending datagrams that must
// not be fragmented.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/udp.hpp>
#include <string>

namespace sortie::runner::check {

struct PathMtu {
  unsigned own = 0;       // MTU of the interface towards the peer
  unsigned path = 0;      // largest size that was answered; 0: none was (filtered)
  bool reported = false;  // the network reported it (ICMP): TCP adapts by itself
};

boost::asio::awaitable<PathMtu> find_path_mtu(boost::asio::io_context& io,
                                              boost::asio::ip::udp::endpoint peer,
                                              const std::string& token);

}  // namespace sortie::runner::check
