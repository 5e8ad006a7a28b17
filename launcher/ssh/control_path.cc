#include "launcher/ssh/control_path.h"

#include <fmt/core.h>
#include <openssl/evp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>

#include "common/base/hex.h"
#include "launcher/ssh/pattern.h"

namespace sortie::launcher::ssh {
namespace {

struct MasterWord {
  std::string_view word;
  ControlMaster meaning;
};
constexpr MasterWord kMasterWords[] = {
    {"no", ControlMaster::no},
    {"false", ControlMaster::no},
    {"yes", ControlMaster::yes},
    {"true", ControlMaster::yes},
    {"auto", ControlMaster::automatic},
    {"ask", ControlMaster::ask},
    {"autoask", ControlMaster::auto_ask},
};

// Seconds in a time unit of sshd_config(5); 0 = no unit.
long unit_seconds(char unit) {
  switch (unit) {
    case 's':
    case 'S':
      return 1;
    case 'm':
    case 'M':
      return 60;
    case 'h':
    case 'H':
      return 3600;
    case 'd':
    case 'D':
      return 86400;
    case 'w':
    case 'W':
      return 604800;
    default:
      return 0;
  }
}

bool is_time(std::string_view text) {
  constexpr long kMostSeconds = std::numeric_limits<int>::max();
  long total = 0;
  if (text.empty()) return false;
  while (!text.empty()) {
    long number = 0;
    std::size_t digits = 0;
    for (; digits < text.size() && text[digits] >= '0' && text[digits] <= '9'; ++digits) {
      number = number * 10 + (text[digits] - '0');
      if (number > kMostSeconds) return false;
    }
    if (digits == 0) return false;
    text.remove_prefix(digits);
    long unit = 1;
    if (!text.empty()) {
      unit = unit_seconds(text.front());
      text.remove_prefix(1);
    }
    if (unit == 0) return false;
    total += number * unit;
    if (total > kMostSeconds) return false;
  }
  return true;
}

// Expands "~/x" and "~ada/x", the latter from the password file, as ssh does.
Result<std::string> expand_tilde(std::string_view text, const ControlNames& names) {
  if (!text.starts_with('~')) return std::string(text);
  const std::size_t slash = std::min(text.find('/'), text.size());
  const std::string user(text.substr(1, slash - 1));
  const std::string_view rest = text.substr(slash);
  if (user.empty()) return names.home + std::string(rest);
  const passwd* entry = ::getpwnam(user.c_str());
  if (!entry)
    return fail(ErrorCode::config,
                fmt::format("there is no user {} here; write the folder in full", user));
  return entry->pw_dir + std::string(rest);
}

Result<std::string> variable_value(std::string_view name, const ControlNames& names) {
  const auto found = names.variables ? names.variables->find(name) : Variables::const_iterator();
  if (!names.variables || found == names.variables->end())
    return fail(ErrorCode::config,
                fmt::format("${{{}}} is not set; set the variable or write its value", name));
  return found->second;
}

Result<std::string> token_value(char token, const ControlNames& names, bool with_jump_host) {
  switch (token) {
    case '%':
      return std::string("%");
    case 'C':
      return connection_hash(names, with_jump_host);
    case 'd':
      return names.home;
    case 'h':
      return names.host;
    case 'i':
      return names.uid;
    case 'j':
      return names.jump_host;
    case 'k':
      return names.key_alias;
    case 'L':
      return names.this_host.substr(0, names.this_host.find('.'));
    case 'l':
      return names.this_host;
    case 'n':
      return names.typed;
    case 'p':
      return names.port;
    case 'r':
      return names.user;
    case 'u':
      return names.this_user;
    default:
      return fail(
          ErrorCode::config,
          fmt::format("%{} is no token of it; use %C %d %h %i %j %k %L %l %n %p %r %u or %%",
                      token));
  }
}

}  // namespace

Result<ControlMaster> parse_control_master(std::string_view value) {
  const std::string word = lower(value);
  for (const MasterWord& known : kMasterWords)
    if (known.word == word) return known.meaning;
  return fail(ErrorCode::config, fmt::format("ControlMaster '{}' is not known; use yes, no, auto, "
                                             "ask or autoask",
                                             value));
}

Result<bool> parse_control_persist(std::string_view value) {
  if (value == "no" || value == "false") return false;
  if (value == "yes" || value == "true" || is_time(value)) return true;
  return fail(ErrorCode::config,
              fmt::format("ControlPersist '{}' is no time; use yes, no, seconds or a time like 10m",
                          value));
}

std::string connection_hash(const ControlNames& names, bool with_jump_host) {
  const std::string text = names.this_host + names.host + names.port + names.user +
                           (with_jump_host ? names.jump_host : "");
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  EVP_Digest(text.data(), text.size(), digest, &length, EVP_sha1(), nullptr);
  return hex({reinterpret_cast<const char*>(digest), length});
}

Result<std::filesystem::path> expand_ssh_path(std::string_view text, const ControlNames& names,
                                              bool with_jump_host) {
  SORTIE_ASSIGN_OR_RETURN(const std::string from_home, expand_tilde(text, names));
  std::string path;
  for (std::size_t i = 0; i < from_home.size(); ++i) {
    const char c = from_home[i];
    const char next = i + 1 < from_home.size() ? from_home[i + 1] : '\0';
    if (c == '%') {
      SORTIE_ASSIGN_OR_RETURN(const std::string value, token_value(next, names, with_jump_host));
      path += value;
      ++i;
    } else if (c == '$' && next == '{') {
      const std::size_t end = from_home.find('}', i);
      if (end == std::string::npos)
        return fail(ErrorCode::config, "'}' is missing after '${'; add it");
      const auto name = std::string_view(from_home).substr(i + 2, end - i - 2);
      SORTIE_ASSIGN_OR_RETURN(const std::string value, variable_value(name, names));
      path += value;
      i = end;
    } else {
      path += c;
    }
  }
  return std::filesystem::path(path);
}

Result<> check_control_folder(const std::filesystem::path& socket) {
  const std::filesystem::path folder = socket.has_parent_path() ? socket.parent_path() : ".";
  struct stat found {};
  if (::stat(folder.c_str(), &found) != 0)
    return std::unexpected(os_error(errno,
                                    fmt::format("the folder {} of ControlPath", folder.string()),
                                    errno == ENOENT ? ErrorCode::not_found : ErrorCode::config));
  if (!S_ISDIR(found.st_mode))
    return fail(ErrorCode::config,
                fmt::format("{} of ControlPath is no folder; name one", folder.string()));
  if (found.st_uid != ::geteuid() && found.st_uid != 0)
    return fail(ErrorCode::config,
                fmt::format("the folder {} of ControlPath belongs to the user id {}, who could put "
                            "a socket of their own there; use a folder of yours, like ~/.ssh",
                            folder.string(), found.st_uid));
  const bool sticky = found.st_uid == 0 && (found.st_mode & S_ISVTX);
  if ((found.st_mode & (S_IWGRP | S_IWOTH)) && !sticky)
    return fail(ErrorCode::config,
                fmt::format("the folder {} of ControlPath is writable by others (mode {:04o}), who "
                            "could put a socket of their own there; chmod go-w {}",
                            folder.string(), found.st_mode & 07777u, folder.string()));
  return {};
}

}  // namespace sortie::launcher::ssh
