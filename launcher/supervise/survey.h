// `sortie plan --connect`: what of a plan only its hosts can tell. Prepares the job on every host
// as `run` does, starts nothing, and takes it back.
#pragma once

#include "common/base/result.h"
#include "common/config/schema.h"
#include "launcher/host/bootstrap.h"
#include "launcher/plan/plan.h"

namespace sortie::launcher {

/// Fills in the CPUs of the ranks, the GPUs of the hosts and surveyed_addr. (A port is only chosen
/// by a run.) Blocks until all hosts are let go of. Error: hosts that can not be reached or would
/// not take the job, one line per reason with the hosts folded; the code is that of the first.
/// `ask`: for the memory of ranks with the threads that they will have.
Result<> survey_hosts(const config::JobConfig& job, const RunnerBinary& binary,
                      const AskTrainer& ask, LaunchPlan& plan);

}  // namespace sortie::launcher
