// Transport to localhost over child processes, without sshd.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <memory>

#include "launcher/host/transport.h"

namespace sortie::launcher {

/// Returns a transport for which every host is this machine. Commands run under /bin/sh in separate
/// sessions, so that Ctrl-C on the terminal reaches only the launcher.
std::unique_ptr<Transport> make_local_transport(boost::asio::any_io_executor executor);

}  // namespace sortie::launcher
