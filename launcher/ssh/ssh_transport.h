// The SSH transport: how the launcher reaches hosts. It hides libssh, which nothing outside this
// folder includes.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <memory>

#include "common/asio/file_calls.h"
#include "common/config/schema.h"
#include "launcher/host/transport.h"
#include "launcher/ssh/user_environment.h"

namespace sortie::launcher {

/// The transport must be destroyed before the io_context of `executor`, which a single thread runs.
/// All hosts share keys and config files, which are read once, and known_hosts files, which are
/// read again if they change. A connection fails if reading them takes longer than `file_limit`.
std::unique_ptr<Transport> make_ssh_transport(
    boost::asio::any_io_executor executor, config::SshConfig ssh,
    ssh::UserEnvironment environment = ssh::UserEnvironment::from_process(),
    std::chrono::milliseconds file_limit = FileCalls::kLimit);

}  // namespace sortie::launcher
