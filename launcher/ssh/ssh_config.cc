#include "launcher/ssh/ssh_config.h"

#include <fmt/core.h>
#include <glob.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>

#include "common/base/atomic_file.h"
#include "common/base/log.h"
#include "common/base/split.h"
#include "launcher/ssh/pattern.h"

namespace sortie::launcher::ssh {
namespace {

constexpr int kMaxIncludeDepth = 16;  // OpenSSH's
constexpr std::size_t kMaxConfigBytes = 4u << 20;

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\f';
}

// Returns nullopt if a quote is not closed.
std::optional<std::vector<std::string>> split_arguments(std::string_view text) {
  std::vector<std::string> arguments;
  std::size_t i = 0;
  for (;;) {
    while (i < text.size() && is_space(text[i])) ++i;
    if (i == text.size() || text[i] == '#') return arguments;
    std::string argument;
    char quote = 0;
    for (; i < text.size() && (quote || !is_space(text[i])); ++i) {
      const char c = text[i];
      const char next = i + 1 < text.size() ? text[i + 1] : '\0';
      if (c == '\\' && (next == '"' || next == '\'' || next == '\\' || (!quote && next == ' '))) {
        argument += next;
        ++i;
      } else if (quote ? c == quote : (c == '"' || c == '\'')) {
        quote = quote ? '\0' : c;
      } else {
        argument += c;
      }
    }
    if (quote) return std::nullopt;
    arguments.push_back(std::move(argument));
  }
}

void set_first(std::string& target, const std::string& value) {
  if (target.empty()) target = value;
}

}  // namespace

Result<std::vector<ConfigLine>> split_config(std::string_view text, std::string_view where) {
  std::vector<ConfigLine> lines;
  int number = 0;
  while (!text.empty()) {
    std::string_view line = take_line(text);
    ++number;
    while (!line.empty() && is_space(line.front())) line.remove_prefix(1);
    while (!line.empty() && is_space(line.back())) line.remove_suffix(1);
    if (line.empty() || line.front() == '#') continue;
    std::size_t i = 0;
    while (i < line.size() && !is_space(line[i]) && line[i] != '=') ++i;
    ConfigLine parsed{number, lower(line.substr(0, i)), {}, {}};
    while (i < line.size() && is_space(line[i])) ++i;
    if (i < line.size() && line[i] == '=') ++i;
    while (i < line.size() && is_space(line[i])) ++i;
    parsed.rest = line.substr(i);
    auto arguments = split_arguments(line.substr(i));
    if (!arguments)
      return fail(
          ErrorCode::config,
          fmt::format("{}:{}: a quote is not closed; add the closing quote", where, number));
    parsed.arguments = std::move(*arguments);
    lines.push_back(std::move(parsed));
  }
  return lines;
}

struct SshConfigReader::Lookup {
  const std::string& host;
  HostConfig config;
  bool identities_only_set = false;

  Result<> apply(const ConfigLine& line, const std::string& file);
  Result<> apply_control(const std::string& key, const std::string& value,
                         const std::string& place);
  bool match_applies(const ConfigLine& line, const std::string& file) const;
};

// A Match with unsupported criteria never applies, because a partial evaluation would be a guess.
bool SshConfigReader::Lookup::match_applies(const ConfigLine& line, const std::string& file) const {
  const auto& words = line.arguments;
  bool applies = !words.empty();
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string criterion = lower(words[i]);
    if (criterion == "all") continue;
    const bool is_host = criterion == "host", is_original = criterion == "originalhost";
    if ((!is_host && !is_original) || i + 1 == words.size()) {
      log::debug("{}:{}: Match {} is not evaluated; its block does not apply", file, line.number,
                 words[i]);
      return false;
    }
    std::vector<std::string> patterns;
    std::string_view list = words[++i];
    while (!list.empty()) {
      const std::size_t comma = std::min(list.find(','), list.size());
      patterns.emplace_back(list.substr(0, comma));
      list.remove_prefix(std::min(comma + 1, list.size()));
    }
    const std::string& name = is_host && !config.host_name.empty() ? config.host_name : host;
    applies = applies && matches_pattern_list(name, patterns);
  }
  return applies;
}

// Applies ControlMaster, ControlPath and ControlPersist, as strictly as ssh does.
Result<> SshConfigReader::Lookup::apply_control(const std::string& key, const std::string& value,
                                                const std::string& place) {
  if (key == "controlpath") {
    if (config.control_path.empty()) config.control_path_place = place;
    set_first(config.control_path, value);
  } else if (key == "controlmaster") {
    const auto master = parse_control_master(value);
    if (!master) return std::unexpected(with_context(master.error(), place));
    if (!config.control_master) config.control_master = *master;
  } else {
    const auto persist = parse_control_persist(value);
    if (!persist) return std::unexpected(with_context(persist.error(), place));
    set_first(config.control_persist, value);
  }
  return {};
}

Result<> SshConfigReader::Lookup::apply(const ConfigLine& line, const std::string& file) {
  const std::string& key = line.keyword;
  const auto place = [&] { return fmt::format("{}:{}", file, line.number); };
  if (line.arguments.empty())
    return fail(
        ErrorCode::config,
        fmt::format("{}: {} has no value; give it one or remove the line", place(), line.keyword));
  const std::string& value = line.arguments.front();
  if (key == "hostname") {
    set_first(config.host_name, value);
  } else if (key == "user") {
    set_first(config.user, value);
  } else if (key == "port") {
    int port = 0;
    const auto parsed = std::from_chars(value.data(), value.data() + value.size(), port);
    if (parsed.ec != std::errc() || parsed.ptr != value.data() + value.size() || port < 1 ||
        port > 65535)
      return fail(ErrorCode::config,
                  fmt::format("{}: Port '{}' is not a port; use 1 to 65535", place(), value));
    if (config.port == 0) config.port = port;
  } else if (key == "identityfile") {
    auto& files = config.identity_files;
    if (std::ranges::find(files, value) == files.end()) files.push_back(value);
  } else if (key == "identitiesonly") {
    const std::string flag = lower(value);
    const bool on = flag == "yes" || flag == "true";
    if (!on && flag != "no" && flag != "false")
      return fail(ErrorCode::config,
                  fmt::format("{}: IdentitiesOnly '{}' is unknown; use yes or no", place(), value));
    if (!identities_only_set) config.identities_only = on;
    identities_only_set = true;
  } else if (key == "identityagent") {
    set_first(config.identity_agent, value);
  } else if (key == "userknownhostsfile") {
    if (config.user_known_hosts_files.empty()) config.user_known_hosts_files = line.arguments;
  } else if (key == "globalknownhostsfile") {
    if (config.global_known_hosts_files.empty()) config.global_known_hosts_files = line.arguments;
  } else if (key == "hostkeyalias") {
    set_first(config.host_key_alias, value);
  } else if (key == "proxyjump") {
    if (config.proxy_command.empty()) set_first(config.proxy_jump, value);
  } else if (key == "proxycommand") {
    if (config.proxy_jump.empty() && config.proxy_command.empty()) {
      config.proxy_command = line.rest;
      config.proxy_command_place = place();
    }
  } else if (key == "kexalgorithms") {
    set_first(config.kex_algorithms, value);
  } else if (key == "hostkeyalgorithms") {
    set_first(config.host_key_algorithms, value);
  } else if (key == "controlpath" || key == "controlmaster" || key == "controlpersist") {
    return apply_control(key, value, place());
  }
  return {};
}

SshConfigReader::SshConfigReader(UserEnvironment environment, std::string config_file)
    : environment_(std::move(environment)), config_file_(std::move(config_file)) {}

Result<const SshConfigReader::Blocks*> SshConfigReader::read(const std::filesystem::path& file) {
  if (const auto found = files_.find(file); found != files_.end()) return &found->second;
  SORTIE_ASSIGN_OR_RETURN(const std::string text, read_file(file, kMaxConfigBytes));
  SORTIE_ASSIGN_OR_RETURN(auto lines, split_config(text, file.string()));
  Blocks blocks(1);
  for (ConfigLine& line : lines) {
    if (line.keyword == "host" || line.keyword == "match") blocks.emplace_back();
    blocks.back().push_back(std::move(line));
  }
  return &files_.emplace(file, std::move(blocks)).first->second;
}

Result<> SshConfigReader::include(Lookup& lookup, const ConfigLine& line,
                                  const std::filesystem::path& from, int depth) {
  if (depth >= kMaxIncludeDepth)
    return fail(ErrorCode::config,
                fmt::format("{}:{}: Include goes deeper than {} files; does a file include itself?",
                            from.string(), line.number, kMaxIncludeDepth));
  for (const std::string& argument : line.arguments) {
    std::filesystem::path pattern = environment_.expand_home(argument);
    const bool of_system = from.string().starts_with("/etc/ssh/");
    if (pattern.is_relative())
      pattern =
          (of_system ? std::filesystem::path("/etc/ssh") : environment_.home / ".ssh") / pattern;
    glob_t matches{};
    if (::glob(pattern.c_str(), 0, nullptr, &matches) == 0) {
      for (std::size_t i = 0; i < matches.gl_pathc; ++i) {
        auto applied = apply_file(lookup, matches.gl_pathv[i], depth + 1);
        if (!applied) {
          ::globfree(&matches);
          return applied;
        }
      }
    }
    ::globfree(&matches);
  }
  return {};
}

Result<> SshConfigReader::apply_file(Lookup& lookup, const std::filesystem::path& file, int depth) {
  SORTIE_ASSIGN_OR_RETURN(const Blocks* blocks, read(file));
  const std::string name = file.string();
  for (const std::vector<ConfigLine>& block : *blocks) {
    std::span<const ConfigLine> lines = block;
    if (&block != &blocks->front()) {
      const ConfigLine& head = block.front();
      const bool applies = head.keyword == "host"
                               ? matches_pattern_list(lookup.host, head.arguments)
                               : lookup.match_applies(head, name);
      if (!applies) continue;
      lines = lines.subspan(1);
    }
    for (const ConfigLine& line : lines)
      SORTIE_TRY(line.keyword == "include" ? include(lookup, line, file, depth)
                                           : lookup.apply(line, name));
  }
  return {};
}

Result<HostConfig> SshConfigReader::lookup(const std::string& host) {
  Lookup lookup{host, {}};
  if (!config_file_.empty()) {
    const auto file = environment_.expand_home(config_file_);
    auto applied = apply_file(lookup, file, 0);
    if (!applied)
      return fail(ErrorCode::config,
                  fmt::format("runner.ssh.config_file: {}", applied.error().message));
    return std::move(lookup.config);
  }
  for (const auto& file : {environment_.home / ".ssh/config", environment_.system_config}) {
    if (file.empty()) continue;
    auto applied = apply_file(lookup, file, 0);
    if (!applied && applied.error().code != ErrorCode::not_found)
      return std::unexpected(std::move(applied).error());
  }
  return std::move(lookup.config);
}

}  // namespace sortie::launcher::ssh
