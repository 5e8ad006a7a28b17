// Holders of the memory checkpoints of a run (wire::HoldMemory): on each host a separate runner
// over a separate connection, from the first attempt to the end of the run. Checkpoints that ranks
// keep there outlive attempts. They are removed with the run: at Goodbye, or when this process is
// gone.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/config/schema.h"
#include "launcher/host/bootstrap.h"
#include "launcher/host/host_session.h"
#include "launcher/host/transport.h"

namespace sortie::launcher {

class MemoryHolders {
 public:
  struct Parts {
    boost::asio::any_io_executor executor;
    Transport& transport;
    const RunnerBinary& binary;
    const config::RunnerConfig& runner;
    std::string run_id;
    std::uint32_t epoch = 1;  // of this supervisor
    /// Receives messages for the user: the host on which no memory is held, and why.
    std::function<void(const std::string& text)> say;
  };

  /// All references must outlive the work of the executor.
  explicit MemoryHolders(Parts parts);
  ~MemoryHolders();

  /// Starts holders on those of `hosts` that have none and stops the holders on all other hosts.
  /// Completes when each host has a holder or a try that began after the call has failed. A failure
  /// is reported to Parts::say; the ranks of that host then find no folder and report it.
  boost::asio::awaitable<void> hold(std::vector<std::string> hosts);
  /// Ends all holders at the end of the run. On completion their memory is freed; after ten seconds
  /// the remaining holders are left to their leases.
  boost::asio::awaitable<void> release();
  /// Makes current and later calls of hold() complete at once, because the run is to end; with
  /// `at_once` also release().
  void stop_waiting(bool at_once);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace sortie::launcher
