// ControlSettings: settings for the OpenSSH master of a host, from ssh_config and [runner.ssh].
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
  /// Paths where a master of the host may listen: with the %C of current OpenSSH and with that of
  /// older versions; only one if they are equal. Empty = ssh_config has no ControlPath, or "none".
  std::vector<std::filesystem::path> sockets;
  /// ssh would start a persistent master: ControlMaster yes or auto, and ControlPersist.
  bool make = false;
  std::string persist;  // value of ControlPersist if `make`
  /// Why the master must not be used although ssh_config has a ControlPath: [runner.ssh] names a
  /// user, port, key or known_hosts file that the path does not distinguish. Empty = it may be
  /// used.
  std::string left_alone;
};

/// For a jump host (`is_jump`) the user and port of runner.ssh are ignored. ErrorCode::config, with
/// file and line, for a ControlPath that ssh refuses.
Result<ControlSettings> make_control_settings(const HostSpec& spec, const config::SshConfig& ssh,
                                              const HostConfig& files,
                                              const UserEnvironment& environment, bool is_jump);

}  // namespace sortie::launcher::ssh
