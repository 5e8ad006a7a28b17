#include "launcher/control/prune.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>

#include "launcher/control/log_index.h"
#include "launcher/control/run_index.h"
#include "launcher/control/run_record.h"
#include "launcher/run/run_folder.h"

namespace sortie::launcher {
namespace fs = std::filesystem;

namespace {

/// A lost run is left alone so long: its hosts may still hold ranks, or somebody looks into it.
constexpr double kLostStaysSeconds = 24 * 3600;

/// When nothing was written to the folder any more.
double last_sign(const fs::path& run) {
  struct stat info {};
  double latest = 0;
  for (const char* name : {"", "logs", "events.jsonl"})
    if (::stat((run / name).c_str(), &info) == 0)
      latest = std::max(latest, static_cast<double>(info.st_mtim.tv_sec));
  return latest;
}

}  // namespace

Result<std::string> prune(const PruneRequest& request) {
  if (request.keep < 0 && request.older_than.empty())
    return fail(ErrorCode::usage,
                "sortie prune: nothing says what may go; give --keep N or --older-than 7d");
  double oldest = unix_time();
  if (!request.older_than.empty()) {
    SORTIE_ASSIGN_OR_RETURN(const std::int64_t age, parse_age_ms(request.older_than));
    oldest -= static_cast<double>(age) / 1000;
  }
  SORTIE_ASSIGN_OR_RETURN(const RunIndex index, RunIndex::open(request.log_dir));
  std::vector<fs::path> all = index.runs();
  std::ranges::reverse(all);
  std::string out;
  int seen = 0, count = 0;
  for (const fs::path& run : all) {
    const auto record = read_run(run);
    if (!record || record->alive()) continue;
    const double ended = record->result ? record->result->ended : last_sign(run);
    if (!record->result && unix_time() - ended < kLostStaysSeconds) continue;
    if (seen++ < request.keep || ended > oldest) continue;
    ++count;
    if (!request.dry_run) {
      std::error_code error;
      fs::remove_all(run, error);
      if (error) return fail(ErrorCode::io, fmt::format("{}: {}", run.string(), error.message()));
      if (const fs::path latest = run.parent_path() / "latest";
          fs::is_symlink(latest, error) && !fs::exists(latest, error))
        fs::remove(latest, error);
    }
    out += fmt::format("{}{}  {}\n", request.dry_run ? "would remove " : "removed ", record->id,
                       record->state_text());
  }
  return out + fmt::format("{} of {} runs {}\n", count, all.size(),
                           request.dry_run ? "would be removed" : "removed");
}

}  // namespace sortie::launcher
