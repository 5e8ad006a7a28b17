// RunView: the story of a run as its files tell it: when what happened, what was first, what
// followed, what nobody could confirm, and how training stands. `ps`, `status`, `report`, `attach`,
// `prune` and the end of `run` all show this. Works on runs that still go, and on files that end in
// mid-line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "launcher/health/health_view.h"
#include "launcher/recovery/attempt_events.h"
#include "launcher/recovery/decide.h"
#include "launcher/view/training_view.h"

namespace sortie::launcher {

/// When hosts reached a stage, in seconds from the start of the run.
struct Stage {
  std::size_t hosts = 0;
  double first = 0, last = 0;
  std::string slowest;  // the host that was last
};

struct RankView {
  std::string state = "waiting";  // waiting, running, ended
  std::uint32_t pid = 0;
  std::string status;  // how it ended
};

/// One start of all ranks.
struct AttemptView {
  std::uint32_t number = 1;
  double begun = 0;                       // seconds from the start of the run
  std::optional<double> ended;            // likewise
  std::optional<double> all_running;      // likewise
  std::vector<std::string> hosts;         // in rank order
  std::optional<AttemptResumed> resumed;  // where training went on, once a trainer has told
  AttemptEnd end;                         // once it has ended
  std::string decision;                   // what was decided then, by which rule; empty = nothing
  bool restarts = false;                  // and that was to start again
};

/// A site of a run over several, as the journal of the whole run has it.
struct SiteView {
  std::string state;  // begun, added, removed, ended
  std::optional<int> exit_code;
  std::string text;                // why it ended; empty = nothing was wrong
  std::size_t joined = 0;          // times that it came into the rounds
  std::int64_t steps_in_vain = 0;  // that it did after the others had gone on without it
};
/// The rounds of such a run.
struct RoundsView {
  std::int64_t round = 0;  // committed last
  std::vector<std::string> members;
  double at = 0;  // seconds from the start of the run
  std::size_t commits = 0, aborts = 0, excluded = 0;
  double exchanging = 0, waiting = 0;  // seconds, of all rounds
  std::string trouble;  // why no round can be committed at present, or why the last exchange failed
};

/// Times, ranks and states of hosts are those of the newest attempt; lists of hosts that something
/// happened to are of all.
struct RunView {
  std::string id, path;
  double begun = 0;  // seconds since 1970
  std::size_t hosts = 0, ranks = 0;
  Stage connected, ready;
  std::string image, image_id;   // of the containers; empty without
  std::size_t image_pulled = 0;  // hosts that had to pull it
  // Seconds from the start.
  std::optional<double> image_at, started, all_running, cause_at, stop_at, ended;
  std::string cause;       // as it was told, with the rank's last lines; empty = none
  std::string cause_what;  // "signal", as in cause.h
  std::string cause_json;  // the event
  std::string stop_reason;
  std::uint32_t stop_grace_ms = 0;
  std::size_t exited_well = 0, consequences = 0, leftovers_killed = 0;
  std::vector<std::pair<std::string, std::size_t>> aftermath;  // how, how many
  std::vector<std::string> gaps;         // "h03: at +9.1 s connected again ..."
  std::vector<std::string> lost;         // "h03: no heartbeat ..."
  std::vector<std::string> swept;        // "h03: 3 processes had to be killed"
  std::vector<std::string> unconfirmed;  // "h03: 77 dd (state D)"
  std::vector<std::string> failed_hosts;
  std::vector<std::string> stragglers;  // "h03: 1.31 times the median of all hosts (+812.4 s)"
  std::vector<std::string> fit_again;   // "h03: checked at +912.4 s"
  std::string planned;                  // why the attempt that runs will be restarted; empty = no
  std::optional<double> hang_at;        // of the last hang
  std::string hang, hang_stacks;        // what it was; the folder of its evidence
  std::optional<int> exit_code;
  std::size_t adoptions = 0;
  std::vector<AttemptView> attempts;       // empty where the journal is of an earlier version
  std::vector<std::string> cordoned;       // hosts that this run has cordoned
  std::map<std::uint32_t, RankView> rank;  // by number, those that were heard of
  std::map<std::string, std::string> host_state;        // connected, ready, lost, failed
  std::map<std::string, std::string> host_trouble;      // why a host is lost or failed
  std::map<std::string, std::string> cgroups;           // of the job on a host, where there is one
  std::vector<std::pair<std::string, SiteView>> sites;  // in the order in which they came
  RoundsView rounds;
  HealthView health;  // times in seconds since 1970
  TrainingView training;
  std::size_t unreadable_lines = 0;

  std::uint32_t attempt() const { return attempts.empty() ? 1 : attempts.back().number; }
  std::size_t restarts() const { return attempts.empty() ? 0 : attempts.size() - 1; }
  /// Between two attempts.
  bool restarting() const { return !attempts.empty() && attempts.back().restarts; }
};

/// Puts events into a view, in the order in which they were written.
class RunReducer {
 public:
  explicit RunReducer(RunView& view) : view_(view) {}

  /// A line of events.jsonl.
  void journal(const nlohmann::json& event);
  /// A line of metrics.jsonl.
  void metric(const nlohmann::json& event);

 private:
  void rank_exited(const nlohmann::json& event);
  void begin_attempt(const nlohmann::json& event, double at);
  void end_attempt(const nlohmann::json& event, double at);
  void health(const nlohmann::json& event, double time);
  SiteView& site(const std::string& name);
  void round(const nlohmann::json& event, double at);

  RunView& view_;
  std::size_t running_ = 0;
  std::map<std::string, std::set<std::uint64_t>> health_numbers_;  // of each host, that were taken
};

/// Of the run whose folder this is. ErrorCode::not_found when it has no journal.
Result<RunView> read_run_view(const std::filesystem::path& folder);

/// The journal alone: `training` stays empty. A run without a journal is one that has just begun.
RunView read_journal(const std::filesystem::path& folder);

/// metrics.jsonl alone.
TrainingView read_training(const std::filesystem::path& folder);

}  // namespace sortie::launcher
