// A user's defaults: a config file of the same form as a job's, for the keys that are not about one
// job (kUser in fields.h). A value there stands between what is built in and the job's config.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/config/load.h"

namespace sortie::config {

/// Names another file than the usual one; "none" = no file is read.
inline constexpr const char* kUserFileVariable = "SORTIE_USER_CONFIG";

struct UserFile {
  std::string name;  // for messages
  std::string text;
};

/// $SORTIE_USER_CONFIG, else $XDG_CONFIG_HOME/sortie/config.toml, else
/// ~/.config/sortie/config.toml; nothing where the usual file is not there. ErrorCode::config for a
/// file that is not the user's (or root's), or that others can write: it may name programs to run.
Result<std::optional<UserFile>> read_user_file();

/// As in load.h, over the user's defaults; null for none. The origin of such a value is
/// "user's /u/config.toml:3:8".
Result<LoadedJob> load_job(const std::filesystem::path& file,
                           const std::vector<std::string>& overrides, const Amend& amend,
                           const UserFile* user);
Result<LoadedJob> load_job_text(std::string_view text, std::string_view name,
                                const std::vector<std::string>& overrides, const Amend& amend,
                                const UserFile* user);

}  // namespace sortie::config
