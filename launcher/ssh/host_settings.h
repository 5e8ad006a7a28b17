// HostSettings: everything needed to reach one host, from runner.ssh and the ssh_config files,
// expanded and defaulted.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "launcher/ssh/ssh_config.h"
#include "launcher/ssh/user_environment.h"

namespace sortie::launcher::ssh {

struct HostSettings {
  std::string host_name;  // what is resolved
  int port = 22;
  std::string user;
  std::string key_name;  // what the host's key is known as: "host", "[host]:2222" or HostKeyAlias
  std::vector<std::filesystem::path> identity_files;
  bool identities_named = false;  // by the user; else the default files, which need not exist
  bool identities_only = false;
  std::string agent_socket;                              // empty = no agent
  std::vector<std::filesystem::path> known_hosts_files;  // new keys are recorded in the first
  std::vector<std::string> jumps;                        // [user@]host[:port], nearest first
  std::string kex_algorithms;
  std::string host_key_algorithms;

  /// "user@host:port": equal for connections that may be shared.
  std::string address() const;
};

/// "[user@]host[:port]" with host a name, an IPv4 address or a bracketed IPv6 literal.
struct HostSpec {
  std::string user;
  std::string host;
  int port = 0;
};
Result<HostSpec> parse_host_spec(std::string_view text);

/// Where and as whom alone: host_name, port, user and key_name. What make_host_settings() begins
/// with.
HostSettings name_settings(const HostSpec& spec, const config::SshConfig& ssh,
                           const HostConfig& files, const UserEnvironment& environment,
                           bool is_jump);

/// runner.ssh wins over the files. For a jump host (`is_jump`) its user and port do not count: they
/// are those of the hosts behind it.
Result<HostSettings> make_host_settings(const HostSpec& spec, const config::SshConfig& ssh,
                                        const HostConfig& files, const UserEnvironment& environment,
                                        bool is_jump);

/// Whether the file of runner.ssh.identity_file, or the public key beside it (whose private half an
/// agent holds), is there. A typing error would else be noticed by nobody whose other keys work.
/// ErrorCode::config.
Result<> check_identity_file(const std::filesystem::path& file);

}  // namespace sortie::launcher::ssh
