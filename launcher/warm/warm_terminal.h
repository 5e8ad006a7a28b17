// The command's part of a person's session on a connection that the background process keeps.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <memory>
#include <string>

#include "common/config/schema.h"
#include "launcher/host/terminal_channel.h"

namespace sortie::launcher::warm {

/// Null where no kept connection carries it: none to this host lives, its server allows no further
/// session, it stands still. The host is to be signed in to then. Starts no background process, and
/// keeps nothing by itself. `runner_hash`: of the runner beside this program.
boost::asio::awaitable<std::unique_ptr<TerminalChannel>> open_kept_terminal(
    boost::asio::any_io_executor executor, config::RunnerConfig runner, std::string runner_hash,
    std::string host, TerminalRequest request);

}  // namespace sortie::launcher::warm
