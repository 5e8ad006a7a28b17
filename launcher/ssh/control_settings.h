// ControlSettings: what ssh_config and [runner.ssh] together say of a host's master.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "launcher/ssh/host_settings.h"
#include "launcher/ssh/ssh_config.h"
#include "launcher/ssh/user_environment.h"

namespace sortie::launcher::ssh {

struct ControlSettings {
  /// Where a master of the host listens, by its newest %C and by the one of older versions; one
  /// where they are equal. Empty = ssh_config has no ControlPath, or none.
  std::vector<std::filesystem::path> sockets;
  bool make = false;    // ssh would leave one behind: ControlMaster yes or auto, and ControlPersist
  std::string persist;  // ControlPersist, when `make`
  /// Why a master would not do although ssh_config has one: [runner.ssh] names a user, a port, a
  /// key or host keys that its path does not tell apart. Empty = it does.
  std::string left_alone;
};

/// `this_host`: what this machine calls itself. For a jump host (`is_jump`) runner.ssh's user and
/// port do not count. ErrorCode::config, with file and line, for a
/// ControlPath that ssh refuses.
Result<ControlSettings> make_control_settings(const HostSpec& spec, const config::SshConfig& ssh,
                                              const HostConfig& files,
                                              const UserEnvironment& environment,
                                              const std::string& this_host, bool is_jump);

}  // namespace sortie::launcher::ssh
