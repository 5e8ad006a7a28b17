#include "launcher/control/prune.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "common/base/quantity.h"
#include "launcher/console/console.h"
#include "launcher/control/held_ranks.h"
#include "launcher/control/log_index.h"
#include "launcher/control/run_index.h"
#include "launcher/control/run_record.h"
#include "launcher/run/run_folder.h"

namespace sortie::launcher {
namespace fs = std::filesystem;

namespace {

/// A lost run is kept this long: its hosts may still hold ranks, or the user may investigate it.
constexpr double kLostStaysSeconds = 24 * 3600;
constexpr double kLongestHoldSeconds = 24 * 3600;

/// Reasons to keep a run that has no supervisor and no result.
struct LostRun {
  double since = 0, stays = kLostStaysSeconds;  // seconds from its last sign of life
  double held = 0;                              // seconds for which hosts may still hold ranks

  LostRun(const RunRecord& record, double last_sign)
      : since(std::max(0.0, unix_time() - last_sign)) {
    // If the config can not be read, assume the longest possible hold.
    const double hold = hold_seconds(record.path).value_or(kLongestHoldSeconds);
    held = hold_left(last_sign, hold);
    if (hold > 0) stays = std::max(stays, hold + kSignSlackSeconds);
  }
  bool may_have_ranks() const { return since < stays; }
  std::string why(const RunRecord& record) const {
    std::string hosts = held > 0 ? fmt::format("its hosts may hold ranks for {} more ({})",
                                               short_time(held), help_for_held(record.id))
                                 : "its hosts may have ranks";
    // On some network file systems, locks are visible only on the machine that holds them.
    if (const SupervisorFacts& boss = record.supervisor; boss.elsewhere())
      hosts = fmt::format("its supervisor may live on {}, whose locks are not always seen here; {}",
                          printable(boss.machine), hosts);
    return fmt::format("last sign of life {} ago; {}; it can go in {}", short_time(since), hosts,
                       short_time(stays - since));
  }
};

/// Returns why to keep the run; empty if it may be removed. `place`: position among the ended runs,
/// the newest is 1.
std::string reason_to_keep(const RunRecord& record, const std::optional<LostRun>& lost,
                           const PruneRequest& request, double ended, double min_age, int place) {
  if (record.alive()) return "its supervisor is alive";
  if (lost && lost->may_have_ranks()) return lost->why(record);
  if (place <= request.keep) return fmt::format("one of the latest {}", request.keep);
  if (unix_time() - ended < min_age)
    return fmt::format("ended {} ago, not longer than {}",
                       short_time(std::max(0.0, unix_time() - ended)), request.older_than);
  return {};
}

}  // namespace

Result<std::string> prune(const PruneRequest& request) {
  if (request.keep < 0 && request.older_than.empty())
    return fail(ErrorCode::usage,
                "sortie prune: specify what to remove: --keep N or --older-than 7d");
  double min_age = 0;  // minimum seconds since the end
  if (!request.older_than.empty()) {
    auto age = parse_age_ms(request.older_than);
    if (!age) return fail(age.error().code, "sortie prune: --older-than " + age.error().message);
    min_age = static_cast<double>(*age) / 1000;
  }
  SORTIE_ASSIGN_OR_RETURN(const RunIndex index, RunIndex::open(request.log_dir));
  std::vector<fs::path> all = index.runs();
  std::ranges::reverse(all);
  std::string out;
  int ended_runs = 0, removed = 0;
  for (const fs::path& run : all) {
    const auto record = read_run(run);
    if (!record) continue;
    const double ended = record->result    ? record->result->ended
                         : record->alive() ? unix_time()
                                           : last_sign_of_life(run);
    std::optional<LostRun> lost;
    if (record->state == RunState::lost) lost.emplace(*record, ended);
    const bool over = !record->alive() && !(lost && lost->may_have_ranks());
    if (over) ++ended_runs;
    const auto line = [&](std::string_view what, const std::string& why) {
      out += fmt::format("{}  {}  {}{}{}\n", what, record->id, record->state_text(),
                         record->name.empty() ? "" : "  " + printable(record->name),
                         why.empty() ? "" : ": " + why);
    };
    const std::string why = reason_to_keep(*record, lost, request, ended, min_age, ended_runs);
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
