// `sortie run`: from a checked job to its end, with everything a person sees.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/load.h"
#include "launcher/control/run_record.h"
#include "launcher/host/bootstrap.h"
#include "launcher/plan/plan.h"
#include "launcher/run/job_options.h"

namespace sortie::launcher {

/// A job with absolute paths, and its plan.
struct PlannedJob {
  config::LoadedJob loaded;
  LaunchPlan plan;
  RunLabel label;
  /// What to try after it, for a person: from the exit code and the run's id; may be empty.
  std::function<std::string(int exit_code, const std::string& run)> next_steps;
};
Result<PlannedJob> plan_job(const JobOptions& options);

class Console;
class RunFolder;
class StartNotice;
class SupervisorLock;

/// Asks the sortie-train beside this program.
AskTrainer trainer_beside();

/// The runner that goes to hosts: the one beside this program, or $SORTIE_RUNNER.
Result<RunnerBinary> open_runner_binary();

/// Runs the supervisor of a run whose folder and lock are there, from connecting to the verdict;
/// returns the exit code. With an epoch above 1 it adopts what another one has left.
struct SuperviseParts {
  const config::JobConfig& job;
  const LaunchPlan& plan;
  const RunnerBinary& binary;
  RunFolder& folder;
  const SupervisorLock& lock;
  Console& console;
  StartNotice* detached = nullptr;
  std::map<std::string, std::string> cgroups = {};  // on the hosts of an adopted run
};
int supervise(const SuperviseParts& parts);

/// Runs it and returns the exit code. With `detached` (control/detach.h) it lets go of the
/// terminal, and says there how the start went.
int run_job(const PlannedJob& job, StartNotice* detached = nullptr);

}  // namespace sortie::launcher
