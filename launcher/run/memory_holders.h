// The holders of a run's memory (wire::HoldMemory): per host one runner of its own, on a connection
// of its own, from the first attempt to the end of the run. What ranks keep there outlives attempts
// and goes with the run: at Goodbye, or when this process is gone.
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
    /// Where no memory is held, and why: for people.
    std::function<void(const std::string& text)> say;
  };

  /// References must outlive the executor's work.
  explicit MemoryHolders(Parts parts);
  ~MemoryHolders();

  /// Has a holder on each of these hosts, and on no other one. A host that can not have one is told
  /// of; its ranks then find no folder, and say so.
  boost::asio::awaitable<void> hold(std::vector<std::string> hosts);
  /// The run has ended: what the holders keep is gone when this returns, or after a few seconds it
  /// is left to their leases.
  boost::asio::awaitable<void> release();
  /// Somebody wants the run to end: hold() returns now, and `at_once` also release().
  void stop_waiting(bool at_once);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace sortie::launcher
