// Starts a persistent master as `ssh` does with ControlMaster and ControlPersist: by the system's
// ssh, which goes into the background after authentication and exits after it has been idle for
// ControlPersist. The master belongs to the user and outlives this process.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "launcher/ssh/host_settings.h"
#include "launcher/ssh/ssh_failure.h"

namespace sortie::launcher::ssh {

struct MasterOrder {
  HostSpec host;
  std::filesystem::path socket;
  std::string persist;  // value of ControlPersist
  /// The user's config if it is not the one that ssh reads by default.
  std::filesystem::path config_file;
  /// ssh expands ControlPath itself, because the value of %C depends on its version.
  bool by_ssh = false;
  bool is_jump = false;  // then the user and port of runner.ssh are ignored
};

/// Returns the argv. With it ssh never prompts, and a host name that begins with "-" is no option.
std::vector<std::string> master_words(const config::SshConfig& ssh, const MasterOrder& order);

/// Runs the argv `words` with the variables `environment` ("NAME=value") and waits until a master
/// listens at `socket`. Returns nullopt then, else the failure. A program that has not become a
/// master after `limit` is killed. ErrorCode::not_found: no such program.
boost::asio::awaitable<std::optional<SshFailure>> start_master(
    boost::asio::any_io_executor executor, std::vector<std::string> words,
    std::vector<std::string> environment, std::filesystem::path socket,
    std::chrono::milliseconds limit);

}  // namespace sortie::launcher::ssh
