// Connects to a host by TCP: tries its addresses one after another, and sets socket options that
// detect a dead link.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <expected>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::launcher::ssh {

struct Dialled {
  Fd socket;            // non-blocking
  std::string address;  // "10.0.0.7"
};

struct DialFailure {
  Error error;                // ErrorCode::connect with the error of each address
  bool out_of_files = false;  // this machine has no descriptor left: says nothing about the host
};

/// Returns a connection to the first endpoint that answers.
boost::asio::awaitable<std::expected<Dialled, DialFailure>> dial(
    std::vector<boost::asio::ip::tcp::endpoint> endpoints, std::chrono::milliseconds timeout);

}  // namespace sortie::launcher::ssh
