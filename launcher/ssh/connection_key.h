// What a connection is found by that is to be used again: everything that decides whom it reaches
// and as whom. Two connections with one key are interchangeable; a change of a host's settings, of
// a key file, of the agent or of the known hosts makes another key.
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
  std::string address;  // "user@host:port", for people
};

class ConnectionKeys {
 public:
  ConnectionKeys(config::SshConfig ssh, UserEnvironment environment);

  /// `host`: [user@]host[:port]. Errors as of a connect() (ErrorCode::config).
  Result<ConnectionKey> key_of(const std::string& host);

 private:
  struct Gathered;
  Result<> add(Gathered& all, const HostSpec& spec, int depth);
  const std::string& state_of(const std::filesystem::path& file);

  const config::SshConfig ssh_;
  const UserEnvironment environment_;
  SshConfigReader reader_;
  std::map<std::filesystem::path, std::string> files_;  // as they were when first asked for
};

}  // namespace sortie::launcher::ssh
