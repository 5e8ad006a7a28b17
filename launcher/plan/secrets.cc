#include "launcher/plan/secrets.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "common/base/atomic_file.h"
#include "common/base/split.h"
#include "common/config/forms.h"
#include "common/config/secret.h"

namespace sortie::launcher {
namespace {

using Variables = std::map<std::string, std::string>;

constexpr std::size_t kMaxSecretBytes = 1u << 20;

Result<Variables> read_secrets(const std::string& path) {
  SORTIE_TRY(check_private("runner.secrets_file", path));
  SORTIE_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxSecretBytes));
  Variables out;
  std::string_view rest = text;
  for (int number = 1; !rest.empty(); ++number) {
    std::string_view line = take_line(rest);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) continue;
    const auto bad = [&](std::string_view why) {
      return fail(ErrorCode::config,
                  fmt::format("runner.secrets_file: {}:{}: {}", path, number, why));
    };
    const std::size_t equals = line.find('=');
    if (equals == line.npos || !config::check_env_name(line.substr(0, equals)).empty())
      return bad("is not of the form NAME=value; the value is all that follows the first '='");
    if (line.contains('\0')) return bad("has a NUL character; remove it");
    if (!out.emplace(line.substr(0, equals), line.substr(equals + 1)).second)
      return bad(fmt::format("{} is there twice; remove one", line.substr(0, equals)));
  }
  return out;
}

}  // namespace

Result<> check_private(std::string_view key, const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    return std::unexpected(os_error(errno, fmt::format("{}: {}", key, path),
                                    errno == ENOENT ? ErrorCode::not_found : ErrorCode::io));
  if (!S_ISREG(info.st_mode))
    return fail(ErrorCode::config, fmt::format("{}: {}: is no file", key, path));
  if (info.st_uid != ::geteuid() && info.st_uid != 0)
    return fail(ErrorCode::config,
                fmt::format("{}: {}: belongs to another user; copy it", key, path));
  if ((info.st_mode & 077) != 0)
    return fail(ErrorCode::config,
                fmt::format("{}: {}: is open to others (mode {:04o}); chmod 600 it", key, path,
                            static_cast<unsigned>(info.st_mode & 07777)));
  return {};
}

Result<> fill_in_secrets(config::RunnerConfig& runner, const Environment& environment) {
  Variables kept;
  if (!runner.secrets_file.empty()) {
    SORTIE_ASSIGN_OR_RETURN(kept, read_secrets(runner.secrets_file));
  }
  for (const auto& [name, value] : kept)
    for (const auto* table : {&runner.env, &runner.secret_env, &runner.container.env})
      if (const auto found = table->find(name);
          found != table->end() && found->second != config::kSecretShown)
        return fail(ErrorCode::config,
                    fmt::format("runner.secrets_file: {}: {} has a value in the config too; remove "
                                "one of the two",
                                runner.secrets_file, name));
  for (auto* table : {&runner.env, &runner.secret_env, &runner.container.env})
    for (auto& [name, value] : *table) {
      if (value != config::kSecretShown) continue;
      const auto in_file = kept.find(name);
      const auto outside = std::ranges::find(environment, name, &Environment::value_type::first);
      if (in_file == kept.end() && outside == environment.end())
        return fail(ErrorCode::config,
                    fmt::format("{}: the value of this secret is not in the config; put {}=VALUE "
                                "into runner.secrets_file, or export it",
                                name, name));
      value = in_file != kept.end() ? in_file->second : outside->second;
      kept.erase(name);
    }
  runner.secret_env.merge(kept);
  return {};
}

Result<> check_passed_secrets(const config::RunnerConfig& runner,
                              const std::vector<std::string>& names,
                              const Environment& environment) {
  for (const std::string& name : names) {
    if (runner.env.contains(name) || runner.secret_env.contains(name) ||
        runner.container.env.contains(name))
      continue;
    if (std::ranges::find(environment, name, &Environment::value_type::first) == environment.end())
      return fail(ErrorCode::config,
                  fmt::format("{}: this secret came from the environment "
                              "(runner.env_passthrough), where it is not any more; export it",
                              name));
  }
  return {};
}

}  // namespace sortie::launcher
