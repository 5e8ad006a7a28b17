// The user's settings from the process environment: read once and passed on as a value, so that no
// other code depends on the environment of the process.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace sortie::launcher::ssh {

/// Environment variables by name.
using Variables = std::map<std::string, std::string, std::less<>>;

struct UserEnvironment {
  std::filesystem::path home;
  std::string user;
  std::string agent_socket;             // SSH_AUTH_SOCK; empty = none
  std::filesystem::path system_config;  // read after the user's config; empty = none
  std::filesystem::path system_known_hosts;
  std::string this_host;  // host name of this machine
  /// All variables by name: for ${NAME} in the config, and for ssh, which makes masters.
  Variables variables;

  static UserEnvironment from_process();

  /// Returns the variables as "NAME=value".
  std::vector<std::string> lines() const;

  /// Replaces a leading "~/" by the home folder.
  std::filesystem::path expand_home(const std::string& path) const;
};

}  // namespace sortie::launcher::ssh
