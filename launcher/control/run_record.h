// RunRecord: what the folder of a run says about it. The files are the truth; whoever reads them
// needs no supervisor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "launcher/control/supervisor_lock.h"

namespace sortie::launcher {

/// result.json: how a run ended. Written once, whole, before the supervisor goes.
struct RunResult {
  int exit_code = 0;
  std::string text;  // the first cause; empty when every rank exited 0
  std::uint32_t ended_after = 0;
  std::string aftermath;          // how the ranks ended that ended after it
  double started = 0, ended = 0;  // seconds since 1970
};
Result<> write_result(const std::filesystem::path& run, const RunResult& result);
std::optional<RunResult> read_result(const std::filesystem::path& run);

/// lost: its supervisor has gone without a result (killed, or the machine went down).
enum class RunState { starting, running, stopping, ended, lost };
std::string_view run_state_name(RunState state);

struct RunRecord {
  struct Host {
    std::string name;
    std::vector<std::uint32_t> ranks;
  };
  std::string id;
  std::filesystem::path path;
  std::vector<std::string> argv;
  std::vector<Host> hosts;
  std::uint32_t world_size = 0;
  RunState state = RunState::lost;
  SupervisorFacts supervisor;
  std::optional<RunResult> result;

  bool alive() const { return state != RunState::ended && state != RunState::lost; }
  double started() const { return result ? result->started : supervisor.started; }
  /// "ended 3", "running".
  std::string state_text() const;
  std::vector<std::string> host_names() const;
  std::string command() const;
};

/// Error: this is no folder of a run, or one of a start that never came to a plan.
Result<RunRecord> read_run(const std::filesystem::path& run);

/// What events.jsonl says about hosts and ranks.
struct RankStory {
  std::string state = "waiting";  // waiting, running, ended, lost
  std::uint32_t pid = 0;
  std::string status;  // how it ended
};
struct RunStory {
  bool started = false, stopping = false;
  std::map<std::uint32_t, RankStory> ranks;
  std::map<std::string, std::string> hosts;    // connected, ready, lost, failed
  std::map<std::string, std::string> cgroups;  // of the job on a host, where there is one
  std::map<std::string, std::string> trouble;  // of a host
  std::vector<std::string> notices;            // first cause, stop orders
};
RunStory read_story(const std::filesystem::path& run);

}  // namespace sortie::launcher
