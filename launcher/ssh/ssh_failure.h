// Maps the stderr of an `ssh` program to a connection stage of Sortie. Pure.
#pragma once

#include <string>
#include <string_view>

#include "common/base/process_status.h"
#include "common/base/result.h"

namespace sortie::launcher::ssh {

struct SshFailure {
  Error error;           // code: the stage
  bool dropped = false;  // closed before the server's banner, as sshd does at its MaxStartups limit
};

/// `said` is the stderr of an ssh program that exited with `status` before the command on the host
/// had begun. Relies on OpenSSH's messages, which are not translated. `who` begins the message: the
/// config key that had the program started.
SshFailure read_ssh_failure(std::string_view said, const ProcessStatus& status,
                            std::string_view who = "runner.ssh.command");

/// Returns the end of a program's output as one short line without control characters.
std::string last_words(std::string_view said);

}  // namespace sortie::launcher::ssh
