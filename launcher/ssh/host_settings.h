// HostSettings: all settings needed to reach one host, from runner.ssh and the ssh_config files,
// with tokens expanded and defaults filled in.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "launcher/ssh/control_path.h"
#include "launcher/ssh/ssh_config.h"
#include "launcher/ssh/user_environment.h"

namespace sortie::launcher::ssh {

struct HostSettings {
  std::string host_name;  // the name to resolve
  int port = 22;
  std::string user;
  std::string key_name;               // name in known_hosts: "host", "[host]:2222" or HostKeyAlias
  std::string key_name_without_port;  // looked up if key_name is unknown; empty = not another name
  std::vector<std::filesystem::path> identity_files;
  bool identities_named = false;  // named by the user; else the default files, which need not exist
  bool identities_only = false;
  std::string agent_socket;                              // empty = no agent
  std::vector<std::filesystem::path> known_hosts_files;  // new keys are added to the first
  std::vector<std::string> jumps;                        // [user@]host[:port], nearest first
  std::string kex_algorithms;
  std::string host_key_algorithms;

  /// "user@host:port".
  std::string address() const;
};

/// Parsed form of "[user@]host[:port]". The host is a name, an IPv4 address or a bracketed IPv6
/// literal.
struct HostSpec {
  std::string user;
  std::string host;
  int port = 0;
};
Result<HostSpec> parse_host_spec(std::string_view text);

/// Fills in host_name, port, user and the names in known_hosts only: the first step of
/// make_host_settings().
HostSettings name_settings(const HostSpec& spec, const config::SshConfig& ssh,
                           const HostConfig& files, const UserEnvironment& environment,
                           bool is_jump);

/// Values of the tokens in the paths of ssh_config, for a host with these names. Refers to
/// `environment`.
ControlNames token_values(const HostSpec& spec, const HostSettings& settings,
                          const HostConfig& files, const UserEnvironment& environment);

/// Makes the settings of a host. runner.ssh has precedence over the files. For a jump host
/// (`is_jump`) the user and port of runner.ssh are ignored: they apply to the hosts behind it.
Result<HostSettings> make_host_settings(const HostSpec& spec, const config::SshConfig& ssh,
                                        const HostConfig& files, const UserEnvironment& environment,
                                        bool is_jump);

/// Checks that runner.ssh.identity_file, or its public key FILE.pub (whose private key an agent may
/// hold), exists. Otherwise a typo would stay unnoticed if other keys work. ErrorCode::config.
Result<> check_identity_file(const std::filesystem::path& file);

}  // namespace sortie::launcher::ssh
