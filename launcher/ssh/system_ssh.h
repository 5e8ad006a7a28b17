// runner.ssh.command: reaches hosts through an ssh program of the system instead of libssh, for
// GSSAPI, FIDO keys and unusual setups. Each command on a host is a separate local process.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <memory>
#include <string>
#include <vector>

#include "common/config/schema.h"
#include "launcher/host/transport.h"
#include "launcher/ssh/user_environment.h"

namespace sortie::launcher::ssh {

/// Returns the program's argv for `host`, up to the command. The user's options come first and have
/// precedence, because ssh uses the first value of an option. "--" keeps a host name that begins
/// with "-" from being an option.
std::vector<std::string> system_ssh_words(const config::SshConfig& ssh, const std::string& host);

/// The same for an interactive session, with or without a remote terminal.
std::vector<std::string> system_ssh_session_words(const config::SshConfig& ssh,
                                                  const std::string& host, bool terminal);

/// `ssh.command` must not be empty.
std::unique_ptr<Transport> make_system_ssh_transport(boost::asio::any_io_executor executor,
                                                     config::SshConfig ssh,
                                                     const UserEnvironment& environment);

}  // namespace sortie::launcher::ssh
