// The runner's side of sortie-health: starts it from the bytes embedded in the runner, as a direct
// child that has no children and dies with the runner. Passes its lines on. If it exits by itself,
// reports that and restarts it a few times. A job never fails because of it.
#pragma once

#include <sys/types.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "common/asio/alarm.h"
#include "common/base/result.h"
#include "runner/process/process_defaults.h"
#include "runner/streams/wakeup.h"

namespace sortie::runner {

class HealthHelper {
 public:
  static constexpr std::size_t kMaxLineBytes = 4096;  // sortie-health writes no longer ones
  static constexpr int kMostRestarts = 3;
  static constexpr std::chrono::seconds kRestartPause{10};

  struct Parts {
    std::vector<std::string> folders;  // whose free space it watches
    std::vector<std::string> env;      // "NAME=value"
    std::string folder;                // receives its program if memory can not be executed
    /// Receives a line of JSON that is_event_line() accepts. Not called after stop().
    std::function<void(std::string line)> on_line;
    /// Receives its pid before anything of it can be reaped.
    std::function<void(pid_t pid)> on_pid;
  };

  /// `defaults` must outlive this object.
  HealthHelper(boost::asio::io_context& io, const ProcessDefaults& defaults, Parts parts);

  /// Starts it. A failure is reported as a line to on_line, like its exit.
  void start();
  /// A child of this process was reaped. No-op if it was another process.
  void reaped(pid_t pid, int wait_status);
  /// Sends KILL: it has nothing to save.
  void stop();
  /// Waits until it was reaped, at most `limit`: a process that hangs in a driver can not be
  /// killed.
  boost::asio::awaitable<void> wait_gone(std::chrono::steady_clock::duration limit);
  bool running() const { return pid_ > 0; }

 private:
  Result<> launch();
  void await_lines();
  bool read_lines();
  void lost(const std::string& why);

  const ProcessDefaults& defaults_;
  Parts parts_;
  boost::asio::posix::stream_descriptor output_;
  Alarm restart_;
  Wakeup gone_;
  pid_t pid_ = -1;
  std::string line_;
  bool skipping_ = false;  // inside a line that is too long
  bool stopped_ = false;
  int restarts_ = 0;
};

/// Arguments of sortie-health: `folders`, and the settings for tests in the runner's own
/// environment (runner/health/README.md).
std::vector<std::string> health_argv(const std::vector<std::string>& folders,
                                     char* const* environment);

}  // namespace sortie::runner
