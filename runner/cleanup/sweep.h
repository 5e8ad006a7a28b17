// Sweeping: a host was lost while ranks ran, and its launcher has reconnected with a fresh runner.
// Ends everything that the run left on this host: first its runner and keepers may do so in order,
// then KILL is sent.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <string>

#include "common/base/result.h"
#include "common/wire/message.h"
#include "runner/process/process_defaults.h"

namespace sortie::runner {

/// Error: the order is invalid (a run id or cgroup that no runner can have created).
Result<> check_sweep(const wire::Sweep& order);

/// Ends everything of the run: processes that hold its folder (runner, keepers), that are in its
/// cgroup, or that have SORTIE_RUN_ID in their environment; then removes its containers, folders
/// and cgroup. The time is bounded: the order's patience, two seconds for keepers, five
/// for processes that survive KILL, and the time that the engine needs.
boost::asio::awaitable<wire::Swept> sweep_run(boost::asio::io_context& io, wire::Sweep order,
                                              const ProcessDefaults& defaults);

}  // namespace sortie::runner
