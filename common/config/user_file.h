// A user's defaults: a config file like a job's, but only for keys that are not specific to one job
// (kUser in fields.h). Its values override the built-in defaults; the job's config overrides them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/config/load.h"

namespace sortie::config {

/// Environment variable with the path of another file than the usual one; "none" = read no file.
inline constexpr const char* kUserFileVariable = "SORTIE_USER_CONFIG";

struct UserFile {
  std::string name;  // for messages
  std::string text;
};

/// Reads $SORTIE_USER_CONFIG, else $XDG_CONFIG_HOME/sortie/config.toml, else
/// ~/.config/sortie/config.toml. Returns nullopt if the usual file does not exist. A file that
/// another user than this one or root owns, or that others can write, is ErrorCode::config, because
/// it may name programs to run.
Result<std::optional<UserFile>> read_user_file();

/// As in load.h, on top of the user's defaults; `user` may be nullptr. The origin of such a value
/// is "user's /u/config.toml:3:8".
Result<LoadedJob> load_job(const std::filesystem::path& file,
                           const std::vector<std::string>& overrides, const Amend& amend,
                           const UserFile* user);
Result<LoadedJob> load_job_text(std::string_view text, std::string_view name,
                                const std::vector<std::string>& overrides, const Amend& amend,
                                const UserFile* user);

}  // namespace sortie::config
