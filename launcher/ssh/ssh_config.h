// Reads ssh_config(5) files as far as Sortie honours them. Pure text work: no libssh, no network.
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

/// What the files say about one host, first value wins. Empty or zero = they say nothing. Tokens
/// (%h, ~) are not expanded yet.
struct HostConfig {
  std::string host_name;
  std::string user;
  int port = 0;
  std::vector<std::string> identity_files;  // all of them, in order
  bool identities_only = false;
  std::string identity_agent;
  std::vector<std::string> user_known_hosts_files;
  std::vector<std::string> global_known_hosts_files;
  std::string host_key_alias;
  std::string proxy_jump;     // "none" is kept: it ends the search
  std::string proxy_command;  // not honoured; kept for the error message
  std::string proxy_command_place;
  std::string kex_algorithms;
  std::string host_key_algorithms;
  std::string control_path;  // "none" is kept
  std::string control_path_place;
  std::optional<ControlMaster> control_master;
  std::string control_persist;  // checked
};

/// One line of a config file, split but not interpreted.
struct ConfigLine {
  int number = 0;
  std::string keyword;  // lower case
  std::vector<std::string> arguments;
  std::string rest;  // the text after the keyword, as it stands
};

/// Splits "Keyword arg "quoted arg"", "keyword=arg"; comments and blank lines are left out.
Result<std::vector<ConfigLine>> split_config(std::string_view text, std::string_view where);

/// The user's file, then the system's. Files are read once and kept.
class SshConfigReader {
 public:
  /// `config_file` empty = ~/.ssh/config where there is one, then the system's. A file that is
  /// named here must exist, and is then the only one (as `ssh -F`).
  SshConfigReader(UserEnvironment environment, std::string config_file);

  /// ErrorCode::config with file and line for a value that can not be used.
  Result<HostConfig> lookup(const std::string& host);

 private:
  struct Lookup;
  /// Cut at Host and Match lines, with which all blocks but the first begin: a host passes over
  /// those that are not for it, however many lines they have.
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
