#include "launcher/control/held_ranks.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>

#include "common/base/command_name.h"
#include "common/config/forms.h"
#include "common/config/load.h"
#include "launcher/run/attempt_folder.h"
#include "launcher/run/run_folder.h"

namespace sortie::launcher {
namespace fs = std::filesystem;

namespace {

double written_at(const fs::path& file) {
  struct stat info {};
  return ::stat(file.c_str(), &info) == 0 ? static_cast<double>(info.st_mtim.tv_sec) : 0;
}

/// Includes the entries: the mtime of a folder changes when files are added or removed, not when
/// they grow.
double newest_in(const fs::path& folder) {
  double latest = written_at(folder);
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error))
    latest = std::max(latest, written_at(entry->path()));
  return latest;
}

}  // namespace

double last_sign_of_life(const fs::path& run) {
  double latest = 0;
  for (const char* name : {"", "events.jsonl", "metrics.jsonl", "outer.log", "attempts"})
    latest = std::max(latest, written_at(run / name));
  latest = std::max(latest, newest_in(run / "logs"));
  std::error_code error;
  for (fs::directory_iterator attempt(run / "attempts", error);
       !error && attempt != fs::directory_iterator(); attempt.increment(error))
    latest = std::max(latest, newest_in(attempt->path() / "logs"));
  for (const std::string& site : sites_in(run))
    latest = std::max(latest, last_sign_of_life(site_folder(run, site)));
  return latest;
}

Result<double> hold_seconds(const fs::path& run) {
  SORTIE_ASSIGN_OR_RETURN(const auto loaded, config::load_job((run / "config.toml").string(), {}));
  const auto hold = config::launcher_hold(loaded.job.runner.on_launcher_loss);
  return std::chrono::duration<double>(hold).count();
}

double hold_left(double last_sign, double hold) {
  return hold > 0 ? std::max(0.0, last_sign + kSignSlackSeconds + hold - unix_time()) : 0;
}

std::string help_for_held(const std::string& run_id) {
  return fmt::format("`{}` goes on with them, `{}` ends them",
                     command_line({"attach", "--adopt", run_id}), command_line({"stop", run_id}));
}

}  // namespace sortie::launcher
