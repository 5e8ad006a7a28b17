// RelayServer: sends pieces of this host's tree to the hosts that the launcher named, while this
// host still receives them itself. It listens only during the transfer, on the address by which the
// launcher reached this host.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <list>
#include <map>
#include <string>

#include "common/files/tree_write.h"
#include "runner/streams/wakeup.h"

namespace sortie::runner {

class RelayServer {
 public:
  /// `tree` must outlive the server.
  RelayServer(boost::asio::io_context& io, files::TreeWriter& tree);

  /// Starts to listen and returns the port. Returns 0 if `address` is not an address of this host
  /// (NAT); nothing is served then.
  std::uint16_t listen(const std::string& address);
  /// Admits the host that knows `key`, over the link of this number.
  void allow(std::uint32_t link, std::string key) { keys_[link] = std::move(key); }
  /// Wakes the connections that wait for pieces. Call when a piece has arrived.
  void notify();
  void close();

 private:
  boost::asio::awaitable<void> accept_loop();
  boost::asio::awaitable<void> serve(boost::asio::ip::tcp::socket socket);
  boost::asio::awaitable<void> give(boost::asio::ip::tcp::socket socket, Wakeup& news);

  boost::asio::io_context& io_;
  files::TreeWriter& tree_;
  boost::asio::ip::tcp::acceptor acceptor_;
  std::map<std::uint32_t, std::string> keys_;
  std::list<Wakeup> waiting_;  // one per connection
};

}  // namespace sortie::runner
