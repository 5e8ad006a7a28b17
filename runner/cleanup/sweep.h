// Sweeping: a host was lost while ranks ran, and its launcher has come back with a fresh runner.
// Whatever the run has left here is ended: first by those who still can do it in order (its runner,
// its keepers), then by KILL.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <string>

#include "common/base/result.h"
#include "common/wire/message.h"
#include "runner/process/process_defaults.h"

namespace sortie::runner {

/// Error: the order is not one (a run id or cgroup that no runner can have made).
Result<> check_sweep(const wire::Sweep& order);

/// Ends everything of the run: processes that hold its folder (runner, keepers), that are in its
/// cgroup, or that have SORTIE_RUN_ID in their environment; then its containers, folders and
/// cgroup. Bounded: patience, two seconds for keepers, ten for what does not die of KILL, and what
/// the engine needs.
boost::asio::awaitable<wire::Swept> sweep_run(boost::asio::io_context& io, wire::Sweep order,
                                              const ProcessDefaults& defaults);

}  // namespace sortie::runner
