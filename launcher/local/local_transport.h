// Localhost without sshd: the same interface over child processes.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <memory>

#include "launcher/host/transport.h"

namespace sortie::launcher {

/// Every host is this machine. Commands run under /bin/sh in a session of their own, so that the
/// terminal's Ctrl-C reaches the launcher alone.
std::unique_ptr<Transport> make_local_transport(boost::asio::any_io_executor executor);

}  // namespace sortie::launcher
