// The SSH transport: how the launcher reaches hosts. This header is all that the rest of the
// launcher sees; libssh stays behind it.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <memory>

#include "common/config/schema.h"
#include "launcher/host/transport.h"
#include "launcher/ssh/user_environment.h"

namespace sortie::launcher {

/// Must be destroyed before the io_context of `executor`, which one thread runs. Keys, known_hosts
/// and config files are read once and shared by all hosts.
std::unique_ptr<Transport> make_ssh_transport(
    boost::asio::any_io_executor executor, config::SshConfig ssh,
    ssh::UserEnvironment environment = ssh::UserEnvironment::from_process());

}  // namespace sortie::launcher
