// `sortie plan --connect`: completes a plan with facts that only the hosts know. Prepares the job
// on every host as `sortie run` does, starts no rank, and drops the job again.
#pragma once

#include "common/base/result.h"
#include "common/config/schema.h"
#include "launcher/host/bootstrap.h"
#include "launcher/plan/plan.h"

namespace sortie::launcher {

/// Fills in the CPUs of the ranks, the CPUs, memory and GPUs of the hosts, and surveyed_addr. (Only
/// a run chooses a port.) Blocks until the connections to all hosts are closed. Error: hosts that
/// can not be reached or refuse the job, one line per reason with the hosts folded; the code is
/// that of the first error. `ask` computes the memory of ranks with their actual number of threads.
Result<> survey_hosts(const config::JobConfig& job, const RunnerBinary& binary,
                      const AskTrainer& ask, LaunchPlan& plan);

}  // namespace sortie::launcher
