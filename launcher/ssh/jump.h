// ProxyJump: a TCP stream through another host's connection, made to look like a socket.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "launcher/ssh/session.h"

namespace sortie::launcher::ssh {

/// Connects from `jump` to `host`:`port`. The socket is one end of a pair whose other end is pumped
/// by coroutines until either side ends.
boost::asio::awaitable<Result<Fd>> dial_through(std::shared_ptr<SessionCore> jump, std::string host,
                                                int port, Clock::time_point deadline);

}  // namespace sortie::launcher::ssh
