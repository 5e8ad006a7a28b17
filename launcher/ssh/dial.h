// TCP to a host: the first of its addresses that answers, with the socket options of a connection
// that must notice a dead link.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::launcher::ssh {

struct Dialled {
  Fd socket;            // non-blocking
  std::string address;  // "10.0.0.7"
};

/// ErrorCode::connect with what each address said.
boost::asio::awaitable<Result<Dialled>> dial(std::vector<boost::asio::ip::tcp::endpoint> endpoints,
                                             std::chrono::milliseconds timeout);

}  // namespace sortie::launcher::ssh
