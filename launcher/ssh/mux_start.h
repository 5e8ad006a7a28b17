// Makes a master as `ssh` does for who sets ControlMaster and ControlPersist: by the system's ssh,
// which goes into the background once it is signed in, and ends by itself when it has been idle for
// as long as ControlPersist says. It is the user's from then on, and outlives this process.
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
  std::string persist;  // ControlPersist
  /// The user's config where it is not the one that ssh reads by itself.
  std::filesystem::path config_file;
  /// ssh expands ControlPath by itself: what %C stands for depends on its version.
  bool by_ssh = false;
  bool is_jump = false;  // runner.ssh's user and port are not of it
};

/// The argv. Nothing in it asks a question; a name that begins with "-" is no option.
std::vector<std::string> master_words(const config::SshConfig& ssh, const MasterOrder& order);

/// Returns when a master listens at `socket`, or says why there is none; `words` is the argv. What
/// has not become one after `limit` is ended. not_found: there is no such program.
boost::asio::awaitable<std::optional<SshFailure>> start_master(
    boost::asio::any_io_executor executor, std::vector<std::string> words,
    std::filesystem::path socket, std::chrono::milliseconds limit);

}  // namespace sortie::launcher::ssh
