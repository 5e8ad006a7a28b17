// A TCP stream through an OpenSSH master, for hosts behind a jump host that has one.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "launcher/ssh/mux_client.h"

namespace sortie::launcher::ssh {

/// Connects from the master's server to `host`:`port`. The socket is one end of a pair whose other
/// end the master serves, as long as `client` lives. Errors as MuxClient::open().
boost::asio::awaitable<Result<Fd>> forward_through(std::shared_ptr<MuxClient> client,
                                                   std::string host, int port,
                                                   MuxClient::Clock::time_point deadline);

}  // namespace sortie::launcher::ssh
