// A TCP stream through the OpenSSH master of a jump host, for hosts behind it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "launcher/ssh/mux_client.h"

namespace sortie::launcher::ssh {

/// Connects from the master's server to `host`:`port`. Returns one end of a socket pair; the master
/// serves the other end as long as `client` lives. Errors as MuxClient::open().
boost::asio::awaitable<Result<Fd>> forward_through(std::shared_ptr<MuxClient> client,
                                                   std::string host, int port,
                                                   MuxClient::Clock::time_point deadline);

}  // namespace sortie::launcher::ssh
