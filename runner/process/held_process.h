// The runner's side of one keeper: starts it, tells it to stop, hands on what it reports.
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

  /// Forks the keeper. Reports come on the I/O thread until `gone` or `keeper_lost`; this object
  /// must outlive them. Error: fork or a descriptor was refused.
  Result<> start(const HeldSpec& spec, OnReport on_report);

  /// The same with a keeper that is there already; a new one where it is not, or is gone.
  Result<> start_prepared(PreparedKeeper prepared, const HeldSpec& spec, OnReport on_report);

  /// The same with a keeper in a container: `hand_over` gives the keeper's end of the control
  /// socket to the container's process 1. Pids in reports are those that this process sees.
  Result<> start_inside(const std::function<Result<>(int control)>& hand_over, OnReport on_report);

  /// TERM now, KILL after `grace`. Harmless at any time.
  void stop(std::chrono::milliseconds grace);

  pid_t keeper() const { return keeper_; }

 private:
  Result<> open(OnReport on_report, const std::function<Result<>(int control)>& give);
  Result<> listen(Fd control, OnReport on_report);
  void await_report();
  void read_reports();
  /// As recv; takes the pid from the credentials of an announcement.
  ssize_t receive(KeeperReport& report);

  boost::asio::posix::stream_descriptor control_;
  OnReport on_report_;
  pid_t keeper_ = -1;
  pid_t announced_ = 0;
  bool over_ = false;  // the last report has come
};

}  // namespace sortie::runner
