#include "launcher/control/own_folder.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "launcher/run/attempt_folder.h"

namespace sortie::launcher {
namespace fs = std::filesystem;

namespace {

constexpr mode_t kOthersMayWrite = S_IWGRP | S_IWOTH;

Result<> check_own(const fs::path& path, bool may_be_missing) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT && may_be_missing) return {};
    return std::unexpected(os_error(errno, path.string()));
  }
  const auto refuse = [&](const std::string& why) {
    return fail(ErrorCode::auth, fmt::format("{}: {}; only the user who started a run can adopt it",
                                             path.string(), why));
  };
  if (info.st_uid != ::geteuid())
    return refuse(
        fmt::format("belongs to uid {}, this process to uid {}", info.st_uid, ::geteuid()));
  if (S_ISLNK(info.st_mode)) return refuse("is a symbolic link");
  if ((info.st_mode & kOthersMayWrite) != 0)
    return refuse(fmt::format("other users may write there (mode {:04o})", info.st_mode & 07777));
  return {};
}

/// Checks what a run folder and the folder of a site have in common. The newest attempt is
/// determined after `attempts` was checked.
Result<> check_attempts_and_journal(const fs::path& folder) {
  for (const char* name : {"events.jsonl", "metrics.jsonl", "logs", "wandb-run", "attempts"})
    SORTIE_TRY(check_own(folder / name, true));
  const fs::path newest = attempt_folder(folder, latest_attempt(folder));
  for (const char* name : {"", "plan.json", "logs"}) SORTIE_TRY(check_own(newest / name, true));
  return {};
}

}  // namespace

Result<> check_own_folder(const fs::path& run) {
  SORTIE_TRY(check_own(run, false));
  SORTIE_TRY(check_own(run / "config.toml", false));
  SORTIE_TRY(check_own(run / "plan.json", false));
  SORTIE_TRY(check_own(run / "outer.log", true));
  SORTIE_TRY(check_attempts_and_journal(run));
  // The names of the sites are read after these checks.
  SORTIE_TRY(check_own(run / "sites", true));
  SORTIE_TRY(check_own(site_names_file(run), true));
  for (const std::string& site : sites_in(run)) {
    const fs::path folder = site_folder(run, site);
    SORTIE_TRY(check_own(folder, true));
    SORTIE_TRY(check_own(folder / "plan.json", true));
    SORTIE_TRY(check_attempts_and_journal(folder));
  }
  return {};
}

}  // namespace sortie::launcher
