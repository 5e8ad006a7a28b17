#include "launcher/ssh/connection_key.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>

#include "common/base/hex.h"
#include "launcher/host/sha256.h"

namespace sortie::launcher::ssh {
namespace {

/// Maximum length of a chain of jump hosts that each have a ProxyJump.
constexpr int kDeepestChain = 16;

/// Prefixes the value with its length, so that different lists of values have different texts.
void add_value(std::string& text, std::string_view value) {
  text += fmt::format("{}:{};", value.size(), value);
}

/// ssh gets the variables when it makes a master; others are named in paths, as ${NAME} or $NAME.
bool uses_variables(const config::SshConfig& ssh, const HostConfig& files) {
  const auto names_one = [](const std::string& text) { return text.contains('$'); };
  return !files.control_path.empty() || names_one(files.identity_agent) ||
         names_one(ssh.identity_file) || names_one(ssh.known_hosts_file) ||
         std::ranges::any_of(files.identity_files, names_one) ||
         std::ranges::any_of(files.user_known_hosts_files, names_one);
}

}  // namespace

struct ConnectionKeys::Gathered {
  std::string text;
  std::string address;  // of the host itself
  bool uses_variables = false;
};

ConnectionKeys::ConnectionKeys(config::SshConfig ssh, UserEnvironment environment)
    : ssh_(std::move(ssh)),
      environment_(std::move(environment)),
      reader_(environment_, ssh_.config_file) {}

/// A text that changes when the file is replaced or rewritten. Empty for a file that does not
/// exist.
const std::string& ConnectionKeys::state_of(const std::filesystem::path& file) {
  const auto [entry, is_new] = files_.try_emplace(file);
  struct stat info {};
  if (is_new && ::stat(file.c_str(), &info) == 0)
    entry->second = fmt::format("{}.{}.{}.{}.{}", info.st_dev, info.st_ino, info.st_size,
                                info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
  return entry->second;
}

Result<> ConnectionKeys::add(Gathered& all, const HostSpec& spec, int depth) {
  if (depth > kDeepestChain)
    return fail(ErrorCode::config,
                fmt::format("ProxyJump of {} leads over more than {} hosts, or back to itself",
                            spec.host, kDeepestChain));
  SORTIE_ASSIGN_OR_RETURN(const HostConfig files, reader_.lookup(spec.host));
  SORTIE_ASSIGN_OR_RETURN(const HostSettings settings,
                          make_host_settings(spec, ssh_, files, environment_, depth > 0));
  std::string& text = all.text;
  if (depth == 0) all.address = settings.address();
  all.uses_variables = all.uses_variables || uses_variables(ssh_, files);
  for (const std::string& value :
       {settings.host_name, std::to_string(settings.port), settings.user, settings.key_name,
        settings.agent_socket, settings.kex_algorithms, settings.host_key_algorithms,
        std::string(settings.identities_only ? "only" : ""),
        std::string(settings.identities_named ? "named" : "")})
    add_value(text, value);
  for (const auto* paths : {&settings.identity_files, &settings.known_hosts_files}) {
    add_value(text, std::to_string(paths->size()));
    for (const auto& path : *paths) {
      add_value(text, path.native());
      add_value(text, state_of(path));
    }
  }
  add_value(text, std::to_string(settings.jumps.size()));
  for (const std::string& jump : settings.jumps) {
    SORTIE_ASSIGN_OR_RETURN(const HostSpec next, parse_host_spec(jump));
    SORTIE_TRY(add(all, next, depth + 1));
  }
  return {};
}

Result<ConnectionKey> ConnectionKeys::key_of(const std::string& host) {
  SORTIE_ASSIGN_OR_RETURN(const HostSpec spec, parse_host_spec(host));
  // accept_new is not part of the key: the host key of an open connection is known.
  Gathered all;
  add_value(all.text, ssh_.control);  // decides whether a master may be used
  SORTIE_TRY(add(all, spec, 0));
  return ConnectionKey{hex(sha256(all.text)), std::move(all.address), all.uses_variables};
}

}  // namespace sortie::launcher::ssh
