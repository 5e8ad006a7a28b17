#include "launcher/ssh/control_settings.h"

#include <fmt/core.h>

#include <algorithm>

#include "launcher/ssh/control_path.h"
#include "launcher/ssh/pattern.h"

namespace sortie::launcher::ssh {
namespace {

bool names_file(const std::vector<std::string>& files, const std::string& wanted,
                const UserEnvironment& environment) {
  return std::ranges::any_of(files, [&](const std::string& file) {
    return environment.expand_home(file) == environment.expand_home(wanted);
  });
}

// Why the master may not match [runner.ssh]. A master is found by its path only, so a setting that
// is not part of the path is unknown for its connection.
std::string contradiction(const HostSettings& settings, const config::SshConfig& ssh,
                          const HostConfig& files, const UserEnvironment& environment) {
  const auto path_has = [&](const char* token) {
    return files.control_path.contains(token) || files.control_path.contains("%C");
  };
  const std::string& user = files.user.empty() ? environment.user : files.user;
  if (settings.user != user && !path_has("%r"))
    return fmt::format(
        "the user is {} here and {} in ssh_config, and ControlPath has neither %r "
        "nor %C",
        settings.user, user);
  if (settings.port != (files.port ? files.port : 22) && !path_has("%p"))
    return fmt::format(
        "the port is {} here and another in ssh_config, and ControlPath has neither "
        "%p nor %C",
        settings.port);
  if (!ssh.identity_file.empty() &&
      !names_file(files.identity_files, ssh.identity_file, environment))
    return "runner.ssh.identity_file is a key that ssh_config does not name for the host";
  std::vector<std::string> known = files.user_known_hosts_files;
  if (known.empty()) known = {"~/.ssh/known_hosts", "~/.ssh/known_hosts2"};
  if (!ssh.known_hosts_file.empty() && !names_file(known, ssh.known_hosts_file, environment))
    return "runner.ssh.known_hosts_file is not the one that ssh_config names for the host";
  return "";
}

}  // namespace

Result<ControlSettings> make_control_settings(const HostSpec& spec, const config::SshConfig& ssh,
                                              const HostConfig& files,
                                              const UserEnvironment& environment, bool is_jump) {
  ControlSettings control;
  if (files.control_path.empty() || lower(files.control_path) == "none") return control;
  const HostSettings settings = name_settings(spec, ssh, files, environment, is_jump);
  const ControlNames names = token_values(spec, settings, files, environment);
  for (const bool with_jump_host : {true, false}) {
    auto path = expand_ssh_path(files.control_path, names, with_jump_host);
    if (!path)
      return std::unexpected(
          with_context(path.error(), fmt::format("{}: ControlPath", files.control_path_place)));
    if (std::ranges::find(control.sockets, *path) == control.sockets.end())
      control.sockets.push_back(std::move(*path));
  }
  const ControlMaster master = files.control_master.value_or(ControlMaster::no);
  const bool persists = !files.control_persist.empty() &&
                        parse_control_persist(files.control_persist).value_or(false);
  control.make = persists && (master == ControlMaster::yes || master == ControlMaster::automatic);
  if (control.make) control.persist = files.control_persist;
  control.left_alone = contradiction(settings, ssh, files, environment);
  return control;
}

}  // namespace sortie::launcher::ssh
