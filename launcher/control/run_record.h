// RunRecord: the state of a run as read from its folder. The files are authoritative; reading them
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

/// result.json: how a run ended. Written once, atomically, before the supervisor exits.
struct RunResult {
  int exit_code = 0;
  std::string text;  // the first cause; empty when every rank exited 0
  std::uint32_t ended_after = 0;
  std::string aftermath;          // how the other ranks ended after it
  double started = 0, ended = 0;  // seconds since 1970
};
Result<> write_result(const std::filesystem::path& run, const RunResult& result);
std::optional<RunResult> read_result(const std::filesystem::path& run);
/// The same for a run without a living supervisor. Its result may not have been written, because
/// the disk was full; then the end in its journal counts.
std::optional<RunResult> result_without_supervisor(const std::filesystem::path& run);

/// run.json: the name of the run and its config. Written before the run starts.
struct RunLabel {
  std::string name;    // --name, else the config's file name, else the program's
  std::string config;  // absolute path of the file; empty when there was none
};
/// Name of a run without --name.
std::string default_run_name(const std::filesystem::path& config,
                             const std::vector<std::string>& program);
Result<> write_label(const std::filesystem::path& run, const RunLabel& label);
RunLabel read_label(const std::filesystem::path& run);

/// lost: the supervisor is gone without a result (killed, or the machine went down). restarting:
/// between two attempts. orphaned: the supervisor is gone without a result, and the watcher starts
/// another one.
enum class RunState { starting, running, restarting, stopping, orphaned, ended, lost };
std::string_view run_state_name(RunState state);

/// When the first supervisor of a run started, in seconds since 1970.
double begin_of_run(const std::filesystem::path& run);

struct RunRecord {
  struct Host {
    std::string name;
    std::vector<std::uint32_t> ranks;
    std::vector<int> slots = {};  // slots of these ranks
  };
  std::string id, name;
  std::filesystem::path path;
  std::uint32_t attempt = 1;      // the attempt of this plan
  std::filesystem::path logs_of;  // folder that contains its logs/
  std::vector<std::string> argv;
  /// The sites of a run over several sites. Each has a folder like that of a run
  /// (run/attempt_folder.h), which read_run() also reads. Hosts and ranks in this record are then
  /// those of the newest attempts of all sites that were not removed, and ranks are numbered over
  /// these sites.
  std::vector<std::string> sites;
  std::vector<Host> hosts;
  std::uint32_t world_size = 0;
  std::uint32_t restarts = 0;  // over all sites
  RunState state = RunState::lost;
  SupervisorFacts supervisor;   // the latest
  double supervised_since = 0;  // begin_of_run()
  std::optional<RunResult> result;

  bool alive() const { return state != RunState::ended && state != RunState::lost; }
  double started() const { return result ? result->started : supervised_since; }
  /// "ended 3", "running".
  std::string state_text() const;
  std::vector<std::string> host_names() const;
  std::string command() const;
  TrainingRun training_run() const { return {path, name, alive()}; }
};

/// Reads the folder of a run. `attempt`: the attempt whose hosts and ranks to read; 0 = the newest.
/// Error: this is no folder of a run, or its start failed before there was a plan;
/// ErrorCode::usage: there was no such attempt.
Result<RunRecord> read_run(const std::filesystem::path& run, std::uint32_t attempt = 0);

}  // namespace sortie::launcher
