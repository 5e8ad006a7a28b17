// The command's side of an interactive session on a kept connection.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <memory>
#include <string>

#include "common/config/schema.h"
#include "launcher/host/terminal_channel.h"

namespace sortie::launcher::warm {

/// Opens a session on a kept connection. Returns nullptr if that is impossible: no connection to
/// this host is open, its server allows no further session, or it does not respond. The caller must
/// then connect itself. Does not start a background process and keeps no connection. `runner_hash`:
/// hash of the runner in the folder of this executable.
boost::asio::awaitable<std::unique_ptr<TerminalChannel>> open_kept_terminal(
    boost::asio::any_io_executor executor, config::RunnerConfig runner, std::string runner_hash,
    std::string host, TerminalRequest request);

}  // namespace sortie::launcher::warm
