// Key under which a connection is cached for reuse. It covers everything that determines which host
// is reached and as which user. Connections with equal keys are interchangeable. A change of a
// host's settings, a key file, the agent or the known hosts changes the key.
#pragma once

#include <map>
#include <string>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "launcher/ssh/host_settings.h"
#include "launcher/ssh/ssh_config.h"
#include "launcher/ssh/user_environment.h"

namespace sortie::launcher::ssh {

struct ConnectionKey {
  std::string hash;     // lower-case hex
  std::string address;  // "user@host:port", for display
  /// The settings of the host or of a jump host of it have a ControlPath or name variables, so a
  /// connection needs those of the command.
  bool uses_variables = false;
};

class ConnectionKeys {
 public:
  ConnectionKeys(config::SshConfig ssh, UserEnvironment environment);

  /// `host`: [user@]host[:port]. Errors like those of connect() (ErrorCode::config).
  Result<ConnectionKey> key_of(const std::string& host);

 private:
  struct Gathered;
  Result<> add(Gathered& all, const HostSpec& spec, int depth);
  const std::string& state_of(const std::filesystem::path& file);

  const config::SshConfig ssh_;
  const UserEnvironment environment_;
  SshConfigReader reader_;
  std::map<std::filesystem::path, std::string> files_;  // file -> its state when first looked at
};

}  // namespace sortie::launcher::ssh
