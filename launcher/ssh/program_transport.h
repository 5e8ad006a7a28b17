// Reaches hosts through a program of the system: runner.ssh.command (system_ssh.h) and
// runner.transport (argv_transport.h). Each command on a host is a separate local process in its
// own session without a terminal. The process group is killed with the channel.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/process_status.h"
#include "common/base/result.h"
#include "common/config/schema.h"
#include "launcher/host/transport.h"
#include "launcher/ssh/ssh_failure.h"

namespace sortie::launcher::ssh {

/// Returns the script for /bin/sh on the host. It prints a line when the connection is up, with the
/// value of `says` (a trusted shell word). Then it reads one command as a line of stdin and runs
/// it. So connecting and starting are separate steps, as with libssh.
std::string first_script(std::string_view says);

struct HostProgram {
  std::string key;  // config key, for messages
  /// Returns the argv that runs first_script() on a host.
  std::function<std::vector<std::string>(const std::string& host)> words;
  /// Maps the end of the program before the script has begun to a failure.
  std::function<SshFailure(std::string_view said, const ProcessStatus& status)> failure;
  /// Returns the server that accepts the connection first; hosts that share it share its
  /// ServerGate. Empty function = the host itself.
  std::function<std::string(const std::string& host)> server_of = {};
  /// Called before each connection; an error refuses it. Empty function = no check.
  std::function<Result<>()> check = {};
  std::size_t fanout = 1;                        // concurrent hosts
  std::chrono::milliseconds time_to_sign_in{0};  // time limit until the line arrives
  std::chrono::milliseconds time_for_drops{0};   // how long dropped connections are retried
};

/// Sum of all timeouts of runner.ssh, because the stages of a program can not be distinguished.
std::chrono::milliseconds time_to_sign_in(const config::SshConfig& ssh);

std::unique_ptr<Transport> make_program_transport(boost::asio::any_io_executor executor,
                                                  HostProgram way);

}  // namespace sortie::launcher::ssh
