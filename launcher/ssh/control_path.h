// ControlMaster, ControlPath and ControlPersist of ssh_config: their values, the tokens of a path,
// and whether its folder is safe. No socket is touched here.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace sortie::launcher::ssh {

/// What ControlMaster asks of a connection for which no master lives yet. `ask` and `auto_ask` have
/// a person confirm each session.
enum class ControlMaster { no, yes, automatic, ask, auto_ask };

/// "yes", "no", "auto", "ask", "autoask" and the other words that ssh takes, in any case.
/// ErrorCode::config.
Result<ControlMaster> parse_control_master(std::string_view value);

/// Whether a master outlives its first session: "no" does not; "yes", "0" and times ("600",
/// "1h30m") do. ErrorCode::config.
Result<bool> parse_control_persist(std::string_view value);

/// What the tokens of ControlPath stand for.
struct ControlNames {
  std::string host;       // %h: HostName, in lower case
  std::string typed;      // %n: as the user names the host
  std::string key_alias;  // %k: HostKeyAlias, else %n
  std::string port;       // %p
  std::string user;       // %r: on the host
  std::string jump_host;  // %j: the last ProxyJump's name; empty = none
  std::string this_host;  // %l; up to its first dot: %L
  std::string this_user;  // %u
  std::string uid;        // %i
  std::string home;       // %d, and the leading "~"
};

/// %C, the SHA-1 of %l%h%p%r%j in hexadecimal. ssh before OpenSSH 9.6 leaves %j out.
std::string connection_hash(const ControlNames& names, bool with_jump_host);

/// The path with "~", "~user", tokens and ${VARIABLES} expanded, in ssh's order. ErrorCode::config
/// for a token or a variable that ssh would refuse too.
Result<std::filesystem::path> expand_control_path(std::string_view text, const ControlNames& names,
                                                  bool with_jump_host);

/// Whether nobody else can put a socket of their own in the place of the user's: the folder belongs
/// to the user or to root, and nobody else may write there (where all may, as in /tmp, root's
/// sticky bit keeps them from it). not_found: there is no such folder. ErrorCode::config: it is not
/// safe.
Result<> check_control_folder(const std::filesystem::path& socket);

}  // namespace sortie::launcher::ssh
