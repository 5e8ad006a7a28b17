#include "launcher/ssh/host_settings.h"

#include <fmt/core.h>
#include <unistd.h>

#include <charconv>

#include "launcher/ssh/pattern.h"

namespace sortie::launcher::ssh {
namespace {

using std::filesystem::path;

// Expands the tokens of HostName, ProxyJump and ProxyCommand.
std::string expand_tokens(std::string_view text, const HostSettings& settings,
                          const std::string& alias) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%' || i + 1 == text.size()) {
      result += text[i];
      continue;
    }
    switch (text[++i]) {
      case '%':
        result += '%';
        break;
      case 'h':
        result += settings.host_name;
        break;
      case 'n':
        result += alias;
        break;
      case 'p':
        result += std::to_string(settings.port);
        break;
      case 'r':
        result += settings.user;
        break;
      default:  // not a token: the zone of an IPv6 address
        result += '%';
        result += text[i];
    }
  }
  return result;
}

std::vector<std::string> split_commas(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    parts.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
}

// Returns the jump host of "ssh -W %h:%p bastion", the old form of ProxyJump. Empty for other
// commands.
std::string jump_of_proxy_command(const std::string& command) {
  const auto lines = split_config("x " + command, "");
  if (!lines || lines->empty()) return "";
  const auto& words = lines->front().arguments;
  if (words.size() < 4 || path(words[0]).filename() != "ssh") return "";
  std::string host;
  bool forwards = false;
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i] == "-W" && i + 1 < words.size()) {
      forwards = words[++i] == "%h:%p" || words[i] == "[%h]:%p";
    } else if (words[i] == "-q") {
      continue;
    } else if (host.empty() && !words[i].starts_with('-')) {
      host = words[i];
    } else {
      return "";
    }
  }
  return forwards ? host : "";
}

Result<std::vector<std::string>> find_jumps(const HostSpec& spec, const HostConfig& files,
                                            const HostSettings& settings) {
  std::string jumps = files.proxy_jump;
  if (jumps.empty() && !files.proxy_command.empty() && files.proxy_command != "none") {
    jumps = jump_of_proxy_command(files.proxy_command);
    if (jumps.empty())
      return fail(
          ErrorCode::config,
          fmt::format("{}: ProxyCommand is not supported: Sortie runs no commands to reach a "
                      "host; use ProxyJump",
                      files.proxy_command_place));
  }
  if (jumps.empty() || jumps == "none") return std::vector<std::string>{};
  auto list = split_commas(jumps);
  for (std::string& jump : list) {
    jump = expand_tokens(jump, settings, spec.host);
    SORTIE_ASSIGN_OR_RETURN(const HostSpec hop, parse_host_spec(jump));
    // "Host *" with a ProxyJump also covers the jump host itself: it is reached directly.
    const bool is_self = hop.host == spec.host || hop.host == settings.host_name;
    if (is_self && (hop.port == 0 || hop.port == settings.port)) return std::vector<std::string>{};
  }
  return list;
}

// The host of the last hop, as written in the config.
std::string last_jump_name(const HostConfig& files) {
  if (files.proxy_jump.empty() || files.proxy_jump == "none") return "";
  const std::size_t comma = files.proxy_jump.rfind(',');
  const auto last =
      std::string_view(files.proxy_jump).substr(comma == std::string::npos ? 0 : comma + 1);
  const auto spec = parse_host_spec(last);
  return spec ? spec->host : "";
}

// `value`: IdentityAgent; empty if it is not set. "$NAME" is the older form of "${NAME}"; there a
// variable that is not set means no agent.
Result<std::string> find_agent(const std::string& value, const UserEnvironment& environment,
                               const ControlNames& names) {
  if (value == "none") return std::string();
  if (value.empty() || value == "SSH_AUTH_SOCK") return environment.agent_socket;
  if (value.starts_with('$') && !value.starts_with("${")) {
    const auto socket = environment.variables.find(std::string_view(value).substr(1));
    return socket == environment.variables.end() ? "" : socket->second;
  }
  auto expanded = expand_ssh_path(value, names, /*with_jump_host=*/true);
  if (!expanded)
    return std::unexpected(with_context(expanded.error(), fmt::format("IdentityAgent {}", value)));
  return expanded->string();
}

}  // namespace

std::string HostSettings::address() const {
  return fmt::format("{}@{}:{}", user, host_name, port);
}

Result<HostSpec> parse_host_spec(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return fail(ErrorCode::config, fmt::format("'{}': {}; write [user@]host[:port]", text, why));
  };
  HostSpec spec;
  std::string_view rest = text;
  if (rest.starts_with("ssh://")) rest.remove_prefix(6);
  if (const auto at = rest.rfind('@'); at != std::string_view::npos) {
    spec.user = rest.substr(0, at);
    rest.remove_prefix(at + 1);
    if (spec.user.empty()) return bad("empty user");
  }
  std::string_view port;
  if (rest.starts_with('[')) {
    const auto close = rest.find(']');
    if (close == std::string_view::npos) return bad("']' is missing");
    spec.host = rest.substr(1, close - 1);
    rest.remove_prefix(close + 1);
    if (!rest.empty() && rest.front() != ':') return bad("text after ']'");
    if (!rest.empty()) port = rest.substr(1);
    if (!rest.empty() && port.empty()) return bad("empty port");
  } else if (const auto colon = rest.find(':');
             colon != std::string_view::npos &&
             rest.find(':', colon + 1) == std::string_view::npos) {
    spec.host = rest.substr(0, colon);
    port = rest.substr(colon + 1);
    if (port.empty()) return bad("empty port");
  } else {
    spec.host = rest;  // more than one colon: a bare IPv6 literal
  }
  if (spec.host.empty()) return bad("empty host");
  if (!port.empty()) {
    const auto parsed = std::from_chars(port.data(), port.data() + port.size(), spec.port);
    if (parsed.ec != std::errc() || parsed.ptr != port.data() + port.size() || spec.port < 1 ||
        spec.port > 65535)
      return bad("the port is not 1 to 65535");
  }
  return spec;
}

HostSettings name_settings(const HostSpec& spec, const config::SshConfig& ssh,
                           const HostConfig& files, const UserEnvironment& environment,
                           bool is_jump) {
  HostSettings settings;
  const auto pick_user = [&] {
    if (!spec.user.empty()) return spec.user;
    if (!is_jump && !ssh.user.empty()) return ssh.user;
    return files.user.empty() ? environment.user : files.user;
  };
  settings.user = pick_user();
  settings.port = 22;
  if (files.port) settings.port = files.port;
  if (!is_jump && ssh.port) settings.port = static_cast<int>(ssh.port);
  if (spec.port) settings.port = spec.port;
  settings.host_name = spec.host;
  if (!files.host_name.empty())
    settings.host_name = expand_tokens(files.host_name, settings, spec.host);
  if (!files.host_key_alias.empty()) {
    settings.key_name = files.host_key_alias;
  } else if (settings.port == 22) {
    settings.key_name = settings.host_name;
  } else {
    settings.key_name = fmt::format("[{}]:{}", settings.host_name, settings.port);
    settings.key_name_without_port = settings.host_name;
  }
  return settings;
}

ControlNames token_values(const HostSpec& spec, const HostSettings& settings,
                          const HostConfig& files, const UserEnvironment& environment) {
  ControlNames names;
  names.host = lower(settings.host_name);
  names.typed = spec.host;
  names.key_alias = files.host_key_alias.empty() ? spec.host : files.host_key_alias;
  names.port = std::to_string(settings.port);
  names.user = settings.user;
  names.jump_host = last_jump_name(files);
  names.this_host = environment.this_host;
  names.this_user = environment.user;
  names.uid = std::to_string(::getuid());
  names.home = environment.home.string();
  names.variables = &environment.variables;
  return names;
}

Result<HostSettings> make_host_settings(const HostSpec& spec, const config::SshConfig& ssh,
                                        const HostConfig& files, const UserEnvironment& environment,
                                        bool is_jump) {
  HostSettings settings = name_settings(spec, ssh, files, environment, is_jump);
  const ControlNames names = token_values(spec, settings, files, environment);
  // Appends the expanded path. `key`: the key that names it.
  const auto add = [&](std::vector<path>& paths, const std::string& text,
                       std::string_view key) -> Result<> {
    auto expanded = expand_ssh_path(text, names, /*with_jump_host=*/true);
    if (!expanded)
      return std::unexpected(with_context(expanded.error(), fmt::format("{} {}", key, text)));
    paths.push_back(std::move(*expanded));
    return {};
  };

  if (!ssh.identity_file.empty())
    SORTIE_TRY(add(settings.identity_files, ssh.identity_file, "runner.ssh.identity_file"));
  for (const auto& file : files.identity_files)
    if (file != "none") SORTIE_TRY(add(settings.identity_files, file, "IdentityFile"));
  settings.identities_named = !settings.identity_files.empty() || !files.identity_files.empty();
  if (!settings.identities_named)
    for (const char* name : {"id_ed25519", "id_ecdsa", "id_rsa"})
      settings.identity_files.push_back(environment.home / ".ssh" / name);
  settings.identities_only = files.identities_only;
  SORTIE_ASSIGN_OR_RETURN(settings.agent_socket,
                          find_agent(files.identity_agent, environment, names));

  if (!ssh.known_hosts_file.empty()) {
    SORTIE_TRY(
        add(settings.known_hosts_files, ssh.known_hosts_file, "runner.ssh.known_hosts_file"));
  } else if (!files.user_known_hosts_files.empty()) {
    for (const auto& file : files.user_known_hosts_files)
      if (file != "none") SORTIE_TRY(add(settings.known_hosts_files, file, "UserKnownHostsFile"));
  } else {
    settings.known_hosts_files.push_back(environment.home / ".ssh/known_hosts");
    settings.known_hosts_files.push_back(environment.home / ".ssh/known_hosts2");
  }
  for (const auto& file : files.global_known_hosts_files)
    if (file != "none") settings.known_hosts_files.push_back(environment.expand_home(file));
  if (files.global_known_hosts_files.empty() && !environment.system_known_hosts.empty())
    settings.known_hosts_files.push_back(environment.system_known_hosts);

  settings.kex_algorithms = files.kex_algorithms;
  settings.host_key_algorithms = files.host_key_algorithms;
  SORTIE_ASSIGN_OR_RETURN(settings.jumps, find_jumps(spec, files, settings));
  return settings;
}

Result<> check_identity_file(const std::filesystem::path& file) {
  std::filesystem::path public_key = file;
  public_key += ".pub";
  std::error_code missing, ignored;
  if (std::filesystem::exists(file, missing) || std::filesystem::exists(public_key, ignored))
    return {};
  return fail(ErrorCode::config,
              fmt::format("runner.ssh.identity_file: {}: {}; name a private key that is there, or "
                          "leave the key out",
                          file.string(), missing ? missing.message() : "no such file"));
}

}  // namespace sortie::launcher::ssh
