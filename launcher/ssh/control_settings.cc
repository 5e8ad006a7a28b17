#include "launcher/ssh/control_settings.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>

#include "launcher/ssh/pattern.h"

namespace sortie::launcher::ssh {
namespace {

// The host of the last hop, as written in the config.
std::string jump_name(const HostConfig& files) {
  if (files.proxy_jump.empty() || files.proxy_jump == "none") return "";
  const std::size_t comma = files.proxy_jump.rfind(',');
  const auto last =
      std::string_view(files.proxy_jump).substr(comma == std::string::npos ? 0 : comma + 1);
  const auto spec = parse_host_spec(last);
  return spec ? spec->host : "";
}

ControlNames names_of(const HostSpec& spec, const HostSettings& settings, const HostConfig& files,
                      const UserEnvironment& environment, const std::string& this_host) {
  ControlNames names;
  names.host = lower(settings.host_name);
  names.typed = spec.host;
  names.key_alias = files.host_key_alias.empty() ? spec.host : files.host_key_alias;
  names.port = std::to_string(settings.port);
  names.user = settings.user;
  names.jump_host = jump_name(files);
  names.this_host = this_host;
  names.this_user = environment.user;
  names.uid = std::to_string(::getuid());
  names.home = environment.home.string();
  names.variables = &environment.variables;
  return names;
}

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
                                              const UserEnvironment& environment,
                                              const std::string& this_host, bool is_jump) {
  ControlSettings control;
  if (files.control_path.empty() || lower(files.control_path) == "none") return control;
  const HostSettings settings = name_settings(spec, ssh, files, environment, is_jump);
  const ControlNames names = names_of(spec, settings, files, environment, this_host);
  for (const bool with_jump_host : {true, false}) {
    auto path = expand_control_path(files.control_path, names, with_jump_host);
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
