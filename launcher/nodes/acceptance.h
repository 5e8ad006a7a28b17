// Checks whether a spare can take a place in a job: `sortie check` of one host, without comparisons
// with others, within a time limit.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <memory>

#include "common/asio/give_up.h"
#include "common/config/hostlist.h"
#include "launcher/host/bootstrap.h"
#include "launcher/host/transport.h"
#include "launcher/plan/plan.h"

namespace sortie::launcher {

/// The job that the host should run. References must outlive the call.
struct AcceptanceJob {
  const config::JobConfig& job;
  const LaunchPlan& plan;  // of any attempt: program, folder and container are used
  const RunnerBinary& binary;
};

/// Connects, starts the runner, checks the host (devices, folders, program, engine) and
/// disconnects. Starts or changes nothing on the host. ErrorCode::unsupported: the message names
/// the failed checks and the remedies; warnings are no failure. Returns within `limit`, whatever
/// the host does. First samples the job's local files, which may block on a disk of this machine.
/// `give_up` (may be nullptr) ends it at once with ErrorCode::interrupted and closes the
/// connection. No reference is used after the return.
boost::asio::awaitable<Result<>> accept_spare(boost::asio::any_io_executor executor,
                                              Transport& transport, AcceptanceJob job,
                                              config::HostSlots spare,
                                              std::chrono::milliseconds limit,
                                              std::shared_ptr<GiveUp> give_up = nullptr);

}  // namespace sortie::launcher
