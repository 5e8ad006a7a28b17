// Hosts that are reached by a program of the system: runner.ssh.command (system_ssh.h) and
// runner.transport (argv_transport.h). Each command on a host is a process of its own here, in a
// session of its own without a terminal; its group is ended with the channel.
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

/// The script for /bin/sh on the host. A line says that the way is open, and `says` (a shell word
/// of ours) where it leads to; then the one command comes as a line of stdin. So connecting and
/// starting are two steps here too.
std::string first_script(std::string_view says);

struct HostProgram {
  std::string key;  // of the config, for messages
  /// The argv that runs first_script() on a host.
  std::function<std::vector<std::string>(const std::string& host)> words;
  /// How its end before the script has begun is to be read.
  std::function<SshFailure(std::string_view said, const ProcessStatus& status)> failure;
  /// The server that sees the connection first: hosts that share it wait for each other. Empty =
  /// the host itself.
  std::function<std::string(const std::string& host)> server_of = {};
  /// Asked before each connection. Empty = good.
  std::function<Result<>()> check = {};
  std::size_t fanout = 1;                        // hosts at the same time
  std::chrono::milliseconds time_to_sign_in{0};  // until the line is there
  std::chrono::milliseconds time_for_drops{0};   // for which a dropped connection is tried again
};

/// All timeouts of runner.ssh together: where a program does it all, its stages can not be told
/// apart.
std::chrono::milliseconds time_to_sign_in(const config::SshConfig& ssh);

std::unique_ptr<Transport> make_program_transport(boost::asio::any_io_executor executor,
                                                  HostProgram way);

}  // namespace sortie::launcher::ssh
