// A host that was lost, while ranks ran or before, once more: a fresh runner there ends everything
// of the run that the lost one may have left, and says what is gone. Bounded in time.
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
  std::string cgroup;  // of the job there, where there is one
  std::string engine;  // of its containers, where there are any
  /// For what still works there to end by itself.
  std::chrono::milliseconds patience{};
  /// How long the host is tried; the answer then has `patience` and 15 s more.
  std::chrono::milliseconds reach{5000};
};

/// Tries the host until it is reached or `reach` is over. References must outlive the executor's
/// work: an attempt that hangs is left behind. Error: nothing is confirmed, and why.
boost::asio::awaitable<Result<wire::Swept>> sweep_host(boost::asio::any_io_executor executor,
                                                       Transport& transport,
                                                       const RunnerBinary& binary,
                                                       const config::RunnerConfig& runner,
                                                       SweepOrder order);

}  // namespace sortie::launcher
