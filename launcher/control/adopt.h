// `sortie attach --adopt`: starts a new supervisor for a run whose supervisor is gone and whose
// hosts hold their ranks (runner.on_launcher_loss).
#pragma once

#include <string>

#include "launcher/control/run_record.h"
#include "launcher/control/watcher.h"
#include "launcher/plan/plan.h"

namespace sortie::launcher {

struct AttachRequest;
class StartNotice;

/// Builds the part of the plan that the new supervisor needs: hosts and ranks as they were started
/// (the config, such as a hosts file, may have changed since), and their containers.
LaunchPlan adopted_plan(const RunRecord& record, const config::JobConfig& job);

/// Adopts the run and supervises it in this process; returns the exit code of the run. If the run
/// can not be adopted, reports the reason to `notice`.
int adopt_run(const std::filesystem::path& run, StartNotice& notice);

/// Starts a supervisor, without a watcher, for a run that has none and should be stopped. Returns 0
/// once it supervises the run. Otherwise returns the exit code of the failed start, after a message
/// on stderr; the run has then ended with this attempt or is unchanged. Error: the run can not be
/// adopted, and nothing was changed.
Result<int> adopt_to_stop(RunRecord record);

/// Returns the watch order of a detached run of `job`: a watcher, if another supervisor could adopt
/// the run.
WatchOrder watch_order(const config::JobConfig& job);

/// Starts the new supervisor in a separate session, then attaches to it. Returns the exit code of
/// the run, as attach() does, or that of the failed start.
int adopt(const AttachRequest& request);

}  // namespace sortie::launcher
