// Reads the keywords of ssh_config(5) files that Sortie supports. Text processing only: no libssh,
// no network.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "launcher/ssh/control_path.h"
#include "launcher/ssh/user_environment.h"

namespace sortie::launcher::ssh {

/// The settings of one host in the files; the first value of a keyword counts. Empty or zero = not
/// set. Tokens (%h, ~) are not expanded.
struct HostConfig {
  std::string host_name;
  std::string user;
  int port = 0;
  std::vector<std::string> identity_files;  // all, in order
  bool identities_only = false;
  std::string identity_agent;
  std::vector<std::string> user_known_hosts_files;
  std::vector<std::string> global_known_hosts_files;
  std::string host_key_alias;
  std::string proxy_jump;     // may be "none"
  std::string proxy_command;  // only `ssh -W` is supported
  std::string proxy_command_place;
  std::string kex_algorithms;
  std::string host_key_algorithms;
  std::string control_path;  // may be "none"
  std::string control_path_place;
  std::optional<ControlMaster> control_master;
  std::string control_persist;  // valid value
};

/// One line of a config file, split but not interpreted.
struct ConfigLine {
  int number = 0;
  std::string keyword;  // lower case
  std::vector<std::string> arguments;
  std::string rest;  // the unparsed text after the keyword
};

/// Splits lines like `Keyword arg "quoted arg"` and `keyword=arg`. Skips comments and blank lines.
Result<std::vector<ConfigLine>> split_config(std::string_view text, std::string_view where);

/// Reads the user's file, then the system's. Files are read once and cached.
class SshConfigReader {
 public:
  /// `config_file` empty = ~/.ssh/config if it exists, then the system's file. If `config_file` is
  /// set it must exist, and no other file is read (like `ssh -F`).
  SshConfigReader(UserEnvironment environment, std::string config_file);

  /// Looks up the settings of `host`. ErrorCode::config with file and line for an invalid value.
  Result<HostConfig> lookup(const std::string& host);

 private:
  struct Lookup;
  /// Lines of a file, split into blocks at Host and Match lines: all blocks except the first begin
  /// with one. A lookup skips whole blocks that do not apply to its host.
  using Blocks = std::vector<std::vector<ConfigLine>>;
  Result<const Blocks*> read(const std::filesystem::path& file);
  Result<> apply_file(Lookup& lookup, const std::filesystem::path& file, int depth);
  Result<> include(Lookup& lookup, const ConfigLine& line, const std::filesystem::path& from,
                   int depth);

  UserEnvironment environment_;
  std::string config_file_;
  std::map<std::filesystem::path, Blocks> files_;
};

}  // namespace sortie::launcher::ssh
