// Connects to a host by TCP: tries its addresses one after another, and sets socket options that
// detect a dead link.
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

/// Returns a connection to the first endpoint that answers. ErrorCode::connect with the error of
/// each address.
boost::asio::awaitable<Result<Dialled>> dial(std::vector<boost::asio::ip::tcp::endpoint> endpoints,
                                             std::chrono::milliseconds timeout);

}  // namespace sortie::launcher::ssh
