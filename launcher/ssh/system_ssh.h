// runner.ssh.command: hosts reached by an ssh program of the system instead of libssh, for GSSAPI,
// FIDO keys and odd set-ups. Each command on a host is a process of its own here.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <memory>
#include <string>
#include <vector>

#include "common/config/schema.h"
#include "launcher/host/transport.h"
#include "launcher/ssh/user_environment.h"

namespace sortie::launcher::ssh {

/// The program's words for `host`, up to the command. What the user's words say wins over what
/// follows them, as ssh takes the first value that it finds; "--" keeps a name that begins with "-"
/// from being an option.
std::vector<std::string> system_ssh_words(const config::SshConfig& ssh, const std::string& host);

/// The same for a person's session, with a terminal there or without.
std::vector<std::string> system_ssh_session_words(const config::SshConfig& ssh,
                                                  const std::string& host, bool terminal);

/// `ssh.command` must not be empty.
std::unique_ptr<Transport> make_system_ssh_transport(boost::asio::any_io_executor executor,
                                                     config::SshConfig ssh,
                                                     const UserEnvironment& environment);

}  // namespace sortie::launcher::ssh
