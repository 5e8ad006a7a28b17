// Sweeps a host that was lost, while ranks ran or before: a new runner there kills everything that
// the lost one may have left of the run, and reports it. Bounded in time.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <string>

#include "common/config/schema.h"
#include "common/wire/message.h"
#include "launcher/host/bootstrap.h"
#include "launcher/host/transport.h"

namespace sortie::launcher {

struct SweepOrder {
  std::string host;
  std::string run_id;
  std::string cgroup;  // of the job on the host; empty = none
  std::string engine;  // container engine; empty = no containers
  /// Time that processes still at work there get to end by themselves.
  std::chrono::milliseconds patience{};
  /// Time limit for reaching the host. The answer may take `patience` + 15 s more.
  std::chrono::milliseconds reach{5000};
};

/// Retries until the host is reached or `reach` is over. All references must outlive the executor's
/// work, because a try that hangs is abandoned and not awaited. Error: cleanup is not confirmed;
/// the message says why.
boost::asio::awaitable<Result<wire::Swept>> sweep_host(boost::asio::any_io_executor executor,
                                                       Transport& transport,
                                                       const RunnerBinary& binary,
                                                       const config::RunnerConfig& runner,
                                                       SweepOrder order);

}  // namespace sortie::launcher
