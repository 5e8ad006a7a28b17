// What an `ssh` program said on stderr, read as one of Sortie's stages. Pure.
#pragma once

#include <string>
#include <string_view>

#include "common/base/process_status.h"
#include "common/base/result.h"

namespace sortie::launcher::ssh {

struct SshFailure {
  Error error;           // code: the stage
  bool dropped = false;  // before the server's banner, as sshd does at its MaxStartups limit
};

/// `said` is the stderr of an ssh program that ended with `status` before the command on the host
/// had begun. The words are those of OpenSSH, which does not translate them. `who` begins the
/// message: what had the program started.
SshFailure read_ssh_failure(std::string_view said, const ProcessStatus& status,
                            std::string_view who = "runner.ssh.command");

/// The last of what a program said: one line, short, without control characters.
std::string last_words(std::string_view said);

}  // namespace sortie::launcher::ssh
