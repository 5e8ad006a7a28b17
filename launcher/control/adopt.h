// `sortie attach --adopt`: a new supervisor for a run whose supervisor is gone and whose hosts hold
// their ranks (runner.on_launcher_loss).
#pragma once

#include <string>

#include "launcher/control/run_record.h"
#include "launcher/control/watcher.h"
#include "launcher/plan/plan.h"

namespace sortie::launcher {

struct AttachRequest;
class StartNotice;

/// What the new supervisor has to know of the plan: hosts and ranks as they were started (a hosts
/// file, say, may have changed since), and the containers that they are in.
LaunchPlan adopted_plan(const RunRecord& record, const config::JobConfig& job);

/// Supervises the run whose supervisor is gone, in this process; returns the run's exit code. What
/// stood in the way goes to `notice`.
int adopt_run(const std::filesystem::path& run, StartNotice& notice);

/// Starts a supervisor, which nobody watches, for a run that has none and is to be stopped. 0: it
/// is in charge. Else, after a word on stderr, the exit code of what stood in the way: the run has
/// then ended with it, or is as it was. Error: the run can not be adopted; nothing was done.
Result<int> adopt_to_stop(RunRecord record);

/// For a detached run of `job`: a watcher, where another supervisor could go on with it.
WatchOrder watch_order(const config::JobConfig& job);

/// Starts the new supervisor apart from this terminal, then attaches to it. Returns the run's exit
/// code, as attach; or what stood in the way.
int adopt(const AttachRequest& request);

}  // namespace sortie::launcher
