// Name resolution on threads of its own: getaddrinfo blocks, can not be interrupted, and a dead
// name server for one host must not hold up the names of the others.
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
  /// Lookups in flight are abandoned, not waited for; must be called before the executor's context
  /// goes.
  void stop();

  /// Addresses of `host` (numeric ones without a lookup), in getaddrinfo's order.
  /// ErrorCode::resolve when there are none, or no answer within `timeout`.
  boost::asio::awaitable<Result<std::vector<boost::asio::ip::tcp::endpoint>>> resolve(
      std::string host, int port, std::chrono::milliseconds timeout);

 private:
  struct Queue;
  std::shared_ptr<Queue> queue_;  // shared with the threads
};

}  // namespace sortie::launcher::ssh
