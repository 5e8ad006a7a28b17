// The story of a run, from its events.jsonl: when what happened, what was first, what followed, and
// what nobody could confirm. Works on runs that still go, and on journals that end in mid-line.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"

namespace sortie::launcher {

/// When hosts reached a stage, in seconds from the start of the run.
struct Stage {
  std::size_t hosts = 0;
  double first = 0, last = 0;
  std::string slowest;  // the host that was last
};

struct Report {
  std::string id, path;
  double begun = 0;  // seconds since 1970
  std::size_t hosts = 0, ranks = 0;
  Stage connected, ready;
  std::string image, image_id;   // of the containers; empty without
  std::size_t image_pulled = 0;  // hosts that had to pull it
  std::optional<double> image_at, started, all_running, cause_at, stop_at, ended;  // from the start
  std::string cause;       // as it was told, with the rank's last lines; empty = none
  std::string cause_what;  // "signal", as in cause.h
  std::string cause_json;  // the event
  std::string stop_reason;
  std::uint32_t stop_grace_ms = 0;
  std::size_t exited_well = 0, consequences = 0, leftovers_killed = 0;
  std::vector<std::pair<std::string, std::size_t>> aftermath;  // how, how many
  std::vector<std::string> gaps;                               // "h03: out of reach for 21 s ..."
  std::vector<std::string> lost;                               // "h03: no sign of life ..."
  std::vector<std::string> swept;        // "h03: 3 processes had to be killed"
  std::vector<std::string> unconfirmed;  // "h03: 77 dd (state D)"
  std::vector<std::string> failed_hosts;
  std::optional<int> exit_code;
  std::size_t unreadable_lines = 0;
};

/// `folder` is that of a run. ErrorCode::not_found when it has no journal.
Result<Report> read_report(const std::filesystem::path& folder);

/// What the exit code says: a rank's own, or one of Sortie's table; empty while there is none.
std::string exit_meaning(const Report& report);

std::string report_text(const Report& report);
/// Schema sortie/report/1.
nlohmann::ordered_json report_json(const Report& report);

}  // namespace sortie::launcher
