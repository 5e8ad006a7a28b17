// Whether a spare is fit to take a place in a job: `sortie check` of one host, without its
// comparisons with others, within a time that the caller sets.
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

/// What the host is to run. References must outlive the call.
struct AcceptanceJob {
  const config::JobConfig& job;
  const LaunchPlan& plan;  // of any attempt: its program, folder, container
  const RunnerBinary& binary;
};

/// Connects, starts the runner, asks it about the host (devices, folders, program, engine) and
/// leaves: nothing is started or changed. ErrorCode::unsupported names what failed and what to do,
/// for a person; warnings are no failure. Ends within `limit`, whatever the host does. Samples the
/// job's local files first, which may wait for this machine's disk. `give_up` (may be null) ends it
/// at once with ErrorCode::interrupted and closes its connection. Nothing that is referred to is
/// used after the end.
boost::asio::awaitable<Result<>> accept_spare(boost::asio::any_io_executor executor,
                                              Transport& transport, AcceptanceJob job,
                                              config::HostSlots spare,
                                              std::chrono::milliseconds limit,
                                              std::shared_ptr<GiveUp> give_up = nullptr);

}  // namespace sortie::launcher
