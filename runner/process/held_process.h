// The runner's side of one keeper: starts it, asks it to stop the held process, and passes on its
// reports.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <functional>

#include "common/base/result.h"
#include "runner/process/keeper.h"
#include "runner/process/prepared_keeper.h"

namespace sortie::runner {

class HeldProcess {
 public:
  using OnReport = std::function<void(const KeeperReport&)>;

  explicit HeldProcess(boost::asio::io_context& io) : control_(io) {}

  /// Forks the keeper. Calls `on_report` on the I/O thread until `gone` or `keeper_lost`; this
  /// object must live until then. Error: fork or a descriptor was refused.
  Result<> start(const HeldSpec& spec, OnReport on_report);

  /// Same, but uses a keeper that was forked before. Forks a new one if there is none or it has
  /// exited.
  Result<> start_prepared(PreparedKeeper prepared, const HeldSpec& spec, OnReport on_report);

  /// Same with a keeper in a container: `hand_over` passes the keeper's end of the control socket
  /// to the container's process 1. Reports contain pids as this process sees them.
  Result<> start_inside(const std::function<Result<>(int control)>& hand_over, OnReport on_report);

  /// Sends TERM now and KILL after `grace`. May be called at any time; a no-op after the end.
  void stop(std::chrono::milliseconds grace);

  pid_t keeper() const { return keeper_; }

 private:
  Result<> open(OnReport on_report, const std::function<Result<>(int control)>& give);
  Result<> listen(Fd control, OnReport on_report);
  void await_report();
  void read_reports();
  /// Like recv. Takes the pid of an announcement from the packet's credentials.
  ssize_t receive(KeeperReport& report);

  boost::asio::posix::stream_descriptor control_;
  OnReport on_report_;
  pid_t keeper_ = -1;
  pid_t announced_ = 0;
  bool over_ = false;  // the last report was received
};

}  // namespace sortie::runner
