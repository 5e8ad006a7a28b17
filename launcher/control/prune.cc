#include "launcher/control/prune.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>

#include "launcher/console/console.h"
#include "launcher/control/log_index.h"
#include "launcher/control/run_index.h"
#include "launcher/control/run_record.h"
#include "launcher/run/attempt_folder.h"
#include "launcher/run/run_folder.h"

namespace sortie::launcher {
namespace fs = std::filesystem;

namespace {

/// A lost run is left alone so long: its hosts may still hold ranks, or somebody looks into it.
constexpr double kLostStaysSeconds = 24 * 3600;

/// When nothing was written to the folder any more, nor to those of its sites.
double last_sign(const fs::path& run) {
  struct stat info {};
  double latest = 0;
  for (const char* name : {"", "logs", "events.jsonl", "outer.log"})
    if (::stat((run / name).c_str(), &info) == 0)
      latest = std::max(latest, static_cast<double>(info.st_mtim.tv_sec));
  for (const std::string& site : sites_in(run))
    latest = std::max(latest, last_sign(site_folder(run, site)));
  return latest;
}

bool may_have_ranks(const RunRecord& record, double last_seen) {
  return record.state == RunState::lost && unix_time() - last_seen < kLostStaysSeconds;
}

/// Empty when the run may go. `place`: among the ended runs, the newest is 1.
std::string reason_to_keep(const RunRecord& record, const PruneRequest& request, double ended,
                           double min_age, int place) {
  if (record.alive()) return "its supervisor is alive";
  const std::string age = short_time(std::max(0.0, unix_time() - ended));
  if (may_have_ranks(record, ended))
    return fmt::format("last sign of life {} ago; its hosts may have ranks, it can go after a day",
                       age);
  if (place <= request.keep) return fmt::format("one of the latest {}", request.keep);
  if (unix_time() - ended < min_age)
    return fmt::format("ended {} ago, not longer than {}", age, request.older_than);
  return {};
}

}  // namespace

Result<std::string> prune(const PruneRequest& request) {
  if (request.keep < 0 && request.older_than.empty())
    return fail(ErrorCode::usage,
                "sortie prune: specify what to remove: --keep N or --older-than 7d");
  double min_age = 0;  // seconds since the end
  if (!request.older_than.empty()) {
    SORTIE_ASSIGN_OR_RETURN(const std::int64_t age, parse_age_ms(request.older_than));
    min_age = static_cast<double>(age) / 1000;
  }
  SORTIE_ASSIGN_OR_RETURN(const RunIndex index, RunIndex::open(request.log_dir));
  std::vector<fs::path> all = index.runs();
  std::ranges::reverse(all);
  std::string out;
  int ended_runs = 0, removed = 0;
  for (const fs::path& run : all) {
    const auto record = read_run(run);
    if (!record) continue;
    const double ended = record->result ? record->result->ended : last_sign(run);
    const bool over = !record->alive() && !may_have_ranks(*record, ended);
    if (over) ++ended_runs;
    const auto line = [&](std::string_view what, const std::string& why) {
      out += fmt::format("{}  {}  {}{}{}\n", what, record->id, record->state_text(),
                         record->name.empty() ? "" : "  " + printable(record->name),
                         why.empty() ? "" : ": " + why);
    };
    const std::string why = reason_to_keep(*record, request, ended, min_age, ended_runs);
    if (!why.empty()) {
      line("kept        ", why);
      continue;
    }
    ++removed;
    if (!request.dry_run) {
      std::error_code error;
      fs::remove_all(run, error);
      if (error) return fail(ErrorCode::io, fmt::format("{}: {}", run.string(), error.message()));
      if (const fs::path latest = run.parent_path() / "latest";
          fs::is_symlink(latest, error) && !fs::exists(latest, error))
        fs::remove(latest, error);
    }
    line(request.dry_run ? "would remove" : "removed     ", "");
  }
  return out + fmt::format("{} of {} runs {}\n", removed, all.size(),
                           request.dry_run ? "would be removed" : "removed");
}

}  // namespace sortie::launcher
