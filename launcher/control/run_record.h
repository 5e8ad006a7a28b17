// RunRecord: what the folder of a run says about it. The files are the truth; whoever reads them
// needs no supervisor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "launcher/control/supervisor_lock.h"
#include "launcher/view/training_text.h"

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

/// run.json: what the run is called and where it came from. Written before it starts.
struct RunLabel {
  std::string name;    // --name, else the config's file name, else the program's
  std::string config;  // absolute path of the file; empty when there was none
};
/// The name of a run that is given none.
std::string default_run_name(const std::filesystem::path& config,
                             const std::vector<std::string>& program);
Result<> write_label(const std::filesystem::path& run, const RunLabel& label);
RunLabel read_label(const std::filesystem::path& run);

/// lost: its supervisor has gone without a result (killed, or the machine went down). restarting:
/// between two attempts. orphaned: its supervisor has gone without a result, and its watcher starts
/// another one.
enum class RunState { starting, running, restarting, stopping, orphaned, ended, lost };
std::string_view run_state_name(RunState state);

struct RunRecord {
  struct Host {
    std::string name;
    std::vector<std::uint32_t> ranks;
    std::vector<int> slots = {};  // of these ranks
  };
  std::string id, name;
  std::filesystem::path path;
  std::uint32_t attempt = 1;      // whose plan this is
  std::filesystem::path logs_of;  // the folder with its logs/ (run/attempt_folder.h)
  std::vector<std::string> argv;
  /// Of a run over several: each has a folder like a run's (run/attempt_folder.h), which read_run()
  /// reads, too. Ranks here are then counted over all of them.
  std::vector<std::string> sites;
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
  TrainingRun training_run() const { return {path, name, alive()}; }
};

/// `attempt`: whose hosts and ranks; 0 = the newest. Error: this is no folder of a run, or one of a
/// start that never came to a plan; usage: there was no such attempt.
Result<RunRecord> read_run(const std::filesystem::path& run, std::uint32_t attempt = 0);

}  // namespace sortie::launcher
