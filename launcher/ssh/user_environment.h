// The user's settings from the process environment: read once and passed on as a value, so that no
// other code depends on the environment of the process.
#pragma once

#include <filesystem>
#include <string>

namespace sortie::launcher::ssh {

struct UserEnvironment {
  std::filesystem::path home;
  std::string user;
  std::string agent_socket;             // SSH_AUTH_SOCK; empty = none
  std::filesystem::path system_config;  // read after the user's config; empty = none
  std::filesystem::path system_known_hosts;

  static UserEnvironment from_process();

  /// Replaces a leading "~/" by the home folder.
  std::filesystem::path expand_home(const std::string& path) const;
};

}  // namespace sortie::launcher::ssh
