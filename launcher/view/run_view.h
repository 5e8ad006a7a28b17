// RunView: the state and history of a run, read from its files: times of events, the first cause
// and its consequences, unconfirmed cleanup, and the state of the training. Used by `ps`, `status`,
// `report`, `attach`, `prune` and at the end of `run`. Works for active runs and for files that end
// in the middle of a line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "launcher/health/health_view.h"
#include "launcher/recovery/attempt_events.h"
#include "launcher/recovery/decide.h"
#include "launcher/view/training_view.h"

namespace sortie::launcher {

/// When hosts reached a stage, in seconds since the start of the run.
struct Stage {
  std::size_t hosts = 0;
  double first = 0, last = 0;
  std::string slowest;  // the host that was last
};

struct RankView {
  std::string state = "waiting";  // waiting, running, ended; lost = its end was not observed
  std::uint32_t pid = 0;
  std::string status;  // how it ended
};

/// One start of all ranks.
struct AttemptView {
  std::uint32_t number = 1;
  double begun = 0;                       // seconds since the start of the run
  std::optional<double> ended;            // seconds since the start of the run
  std::optional<double> all_running;      // seconds since the start of the run
  std::vector<std::string> hosts;         // in rank order
  std::optional<AttemptResumed> resumed;  // where training resumed, once reported
  AttemptEnd end;                         // valid once it has ended
  std::string decision;                   // decision after it, with its rule; empty = none
  bool restarts = false;                  // the decision was to restart
  bool no_progress = false;               // ... to stop by recovery.no_progress_limit
};

/// A supervisor that took over the run from another one, which died or was stopped.
struct AdoptionView {
  double at = 0;            // seconds since the start of the run
  std::uint32_t epoch = 1;  // number of the supervisor, from 1
  std::vector<std::string> hosts, lost;
};

/// A site of a run over several sites, from the journal of the whole run.
struct SiteView {
  std::string state;  // begun, added, removed, ended
  std::optional<int> exit_code;
  std::string text;                // why it ended; empty = no error
  std::size_t joined = 0;          // number of times it joined the rounds
  std::int64_t steps_in_vain = 0;  // wasted: done after the others had continued without it
};
/// The rounds of a run over several sites.
struct RoundsView {
  std::int64_t round = 0;  // last committed round
  std::vector<std::string> members;
  double at = 0;  // seconds since the start of the run
  std::size_t commits = 0, aborts = 0, excluded = 0;
  double exchanging = 0, waiting = 0;  // seconds, over all rounds
  std::string trouble;  // why no round can be committed now, or why the last exchange failed
};

/// Times, ranks and host states are those of the newest attempt. The lists of hosts with events
/// (gaps, lost, swept ...) cover all attempts.
struct RunView {
  std::string id, path;
  double begun = 0;  // seconds since 1970
  std::size_t hosts = 0, ranks = 0;
  Stage connected, ready;
  std::string image, image_id;   // container image; empty = none
  std::size_t image_pulled = 0;  // hosts that had to pull it
  // Seconds since the start of the run.
  std::optional<double> image_at, started, all_running, cause_at, stop_at, ended;
  std::string cause;       // text with the rank's last lines; empty = none
  std::string cause_what;  // "signal": cause_name() in cause.h
  std::string cause_json;  // the event `cause`
  std::string stop_reason;
  std::optional<std::uint32_t> stop_grace_ms;  // sites have their own
  std::size_t exited_well = 0, consequences = 0, leftovers_killed = 0;
  std::vector<std::pair<std::string, std::size_t>> aftermath;  // {how, number of ranks}
  std::vector<std::string> gaps;         // "h03: at +9.1 s connected again ..."
  std::vector<std::string> lost;         // "h03: no heartbeat ..."
  std::vector<std::string> swept;        // "h03: 3 processes had to be killed"
  std::vector<std::string> unconfirmed;  // "h03: 77 dd (state D)"
  std::vector<std::string> failed_hosts;
  std::vector<std::string> stragglers;  // "h03: 1.31 times the median of all hosts (+812.4 s)"
  std::vector<std::string> fit_again;   // "h03: checked at +912.4 s"
  std::string planned;            // why the current attempt will be restarted; empty = it will not
  std::optional<double> hang_at;  // time of the last hang of the attempt
  std::string hang, hang_stacks;  // its description; the folder with its stacks
  std::optional<int> exit_code;
  std::string end_text;  // the first cause, as of the end; empty = every rank exited with 0
  std::size_t adoptions = 0;
  std::vector<AdoptionView> adopted;
  std::vector<AttemptView> attempts;                // empty if an earlier version wrote the journal
  std::vector<std::string> cordoned;                // hosts that this run cordoned
  std::map<std::uint32_t, RankView> rank;           // rank -> its state, if known
  std::map<std::string, std::string> host_state;    // connected, ready, reconnecting, lost, failed
  std::map<std::string, std::string> host_trouble;  // why a host is reconnecting, lost or failed
  std::map<std::string, std::string> cgroups;       // host -> cgroup of the job there, if any
  std::vector<std::pair<std::string, SiteView>> sites;  // in the order of their first event
  RoundsView rounds;
  HealthView health;  // times in seconds since 1970
  TrainingView training;
  std::size_t unreadable_lines = 0;

  std::uint32_t attempt() const { return attempts.empty() ? 1 : attempts.back().number; }
  std::size_t restarts() const { return attempts.empty() ? 0 : attempts.size() - 1; }
  /// Whether the run is between two attempts.
  bool restarting() const { return !attempts.empty() && attempts.back().restarts; }
};

/// Adds events to a view. They must be added in the order in which they were written.
class RunReducer {
 public:
  explicit RunReducer(RunView& view) : view_(view) {}

  /// Adds a line of events.jsonl.
  void journal(const nlohmann::json& event);
  /// Adds a line of metrics.jsonl.
  void metric(const nlohmann::json& event);

 private:
  void rank_exited(const nlohmann::json& event);
  void begin_attempt(const nlohmann::json& event, double at);
  void end_attempt(const nlohmann::json& event, double at);
  void decision(const nlohmann::json& event);
  void cause(const nlohmann::json& event, double at);
  void end_run(const nlohmann::json& event, double at);
  void health(const nlohmann::json& event, double time);
  SiteView& site(const std::string& name);
  void site_changed(const nlohmann::json& event);
  void round(const nlohmann::json& event, double at);

  RunView& view_;
  std::size_t running_ = 0;
  std::set<std::string> connected_, ready_;                        // hosts of the current attempt
  std::map<std::string, std::set<std::uint64_t>> health_numbers_;  // of events taken, by host
};

/// Reads the run in `folder`. ErrorCode::not_found if it has no journal.
Result<RunView> read_run_view(const std::filesystem::path& folder);

/// Reads only the journal: `training` stays empty. A run without a journal counts as just begun.
RunView read_journal(const std::filesystem::path& folder);

/// Reads only metrics.jsonl.
TrainingView read_training(const std::filesystem::path& folder);

}  // namespace sortie::launcher
