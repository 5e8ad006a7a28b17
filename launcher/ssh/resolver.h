// Name resolution on separate threads: getaddrinfo blocks and can not be interrupted, and a dead
// name server for one host must not delay the names of the others.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace sortie::launcher::ssh {

class Resolver {
 public:
  explicit Resolver(boost::asio::any_io_executor executor);
  ~Resolver() { stop(); }
  /// Abandons lookups in flight without waiting for them. Must be called before the executor's
  /// context is destroyed.
  void stop();

  /// Resolves `host` to addresses in getaddrinfo's order; numeric addresses need no lookup.
  /// ErrorCode::resolve if there are none, or no answer arrives within `timeout`.
  boost::asio::awaitable<Result<std::vector<boost::asio::ip::tcp::endpoint>>> resolve(
      std::string host, int port, std::chrono::milliseconds timeout);

 private:
  struct Queue;
  std::shared_ptr<Queue> queue_;  // shared with the threads
};

}  // namespace sortie::launcher::ssh
