// ControlMaster, ControlPath and ControlPersist of ssh_config: parses their values, expands the
// tokens of paths, and checks whether the folder of a ControlPath is safe. Opens no socket.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "launcher/ssh/user_environment.h"

namespace sortie::launcher::ssh {

/// Value of ControlMaster. `ask` and `auto_ask` make the user confirm each session.
enum class ControlMaster { no, yes, automatic, ask, auto_ask };

/// Parses "yes", "no", "auto", "ask", "autoask" and the other words that ssh accepts, ignoring
/// case. ErrorCode::config.
Result<ControlMaster> parse_control_master(std::string_view value);

/// Returns whether a master outlives its first session: false for "no"; true for "yes", "0" and
/// times ("600", "1h30m"). ErrorCode::config.
Result<bool> parse_control_persist(std::string_view value);

/// Values of the tokens of ControlPath, IdentityFile, UserKnownHostsFile and IdentityAgent.
struct ControlNames {
  std::string host;                      // %h: HostName, in lower case
  std::string typed;                     // %n: the host as the user wrote it
  std::string key_alias;                 // %k: HostKeyAlias, else %n
  std::string port;                      // %p
  std::string user;                      // %r: user on the host
  std::string jump_host;                 // %j: name of the last ProxyJump host; empty = none
  std::string this_host;                 // %l; %L is the part before the first dot
  std::string this_user;                 // %u
  std::string uid;                       // %i
  std::string home;                      // %d, and the leading "~"
  const Variables* variables = nullptr;  // ${NAME}
};

/// Returns %C: the SHA-1 of %l%h%p%r%j in hexadecimal. Before OpenSSH 9.6 ssh omits %j.
std::string connection_hash(const ControlNames& names, bool with_jump_host);

/// Expands "~", "~user", tokens and ${VARIABLES} in the order in which ssh does. ErrorCode::config
/// for a token or variable that ssh would refuse, too.
Result<std::filesystem::path> expand_ssh_path(std::string_view text, const ControlNames& names,
                                              bool with_jump_host);

/// Checks that no other user can replace the socket: its folder must belong to the user or to root,
/// and must not be writable by others, except with root's sticky bit as in /tmp.
/// ErrorCode::not_found: the folder does not exist. ErrorCode::config: it is not safe.
Result<> check_control_folder(const std::filesystem::path& socket);

}  // namespace sortie::launcher::ssh
