// The largest IP packet that gets to a peer and is answered, found with datagrams that must not be
// fragmented.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/udp.hpp>
#include <string>

namespace sortie::runner::check {

struct PathMtu {
  unsigned own = 0;       // of the interface towards the peer
  unsigned path = 0;      // largest size that was answered; 0: no datagram was (filtered)
  bool reported = false;  // the network said so (ICMP): TCP adapts by itself
};

boost::asio::awaitable<PathMtu> find_path_mtu(boost::asio::io_context& io,
                                              boost::asio::ip::udp::endpoint peer,
                                              const std::string& token);

}  // namespace sortie::runner::check
