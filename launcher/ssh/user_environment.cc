#include "launcher/ssh/user_environment.h"

#include <pwd.h>
#include <unistd.h>

#include <string_view>

#include "common/base/environment.h"
#include "common/base/host_name.h"

namespace sortie::launcher::ssh {

UserEnvironment UserEnvironment::from_process() {
  UserEnvironment result;
  result.home = environment_variable("HOME");
  if (const passwd* entry = ::getpwuid(::getuid())) {
    result.user = entry->pw_name;
    if (result.home.empty()) result.home = entry->pw_dir;
  }
  if (result.user.empty()) result.user = environment_variable("USER");
  result.agent_socket = environment_variable("SSH_AUTH_SOCK");
  result.system_config = "/etc/ssh/ssh_config";
  result.system_known_hosts = "/etc/ssh/ssh_known_hosts";
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view line = *entry;
    const std::size_t equals = line.find('=');
    if (equals != line.npos)
      result.variables.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  result.this_host = host_name();
  return result;
}

std::vector<std::string> UserEnvironment::lines() const {
  std::vector<std::string> lines;
  for (const auto& [name, value] : variables) lines.push_back(name + '=' + value);
  return lines;
}

std::filesystem::path UserEnvironment::expand_home(const std::string& path) const {
  if (path == "~") return home;
  if (path.starts_with("~/")) return home / path.substr(2);
  return path;
}

}  // namespace sortie::launcher::ssh
