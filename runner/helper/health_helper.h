// sortie-health as the runner sees it: started from the bytes in the runner, a direct child that
// has no children of its own and dies with the runner. Its lines are handed on; when it ends by
// itself that is said, and it is started again a few times. A job never fails for it.
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

#include "common/base/result.h"
#include "runner/process/process_defaults.h"
#include "runner/streams/wakeup.h"

namespace sortie::runner {

class HealthHelper {
 public:
  static constexpr std::size_t kMaxLineBytes = 4096;  // it makes none that are longer
  static constexpr int kMostRestarts = 3;
  static constexpr std::chrono::seconds kRestartPause{10};

  struct Parts {
    std::vector<std::string> folders;  // whose room it watches
    std::vector<std::string> env;      // "NAME=value"
    std::string folder;                // for its program, where that can not be run from memory
    /// A line of JSON, checked as far as is_event_line() does; not again after stop().
    std::function<void(std::string line)> on_line;
    /// It has this pid from now on; before anything of it can be reaped.
    std::function<void(pid_t pid)> on_pid;
  };

  /// `defaults` must outlive it.
  HealthHelper(boost::asio::io_context& io, const ProcessDefaults& defaults, Parts parts);

  /// Starts it. What goes wrong is said in a line, as an end is.
  void start();
  /// A child of this process was reaped; nothing happens when it was another one.
  void reaped(pid_t pid, int wait_status);
  /// KILLs it: it has nothing to save.
  void stop();
  /// Waits until it was reaped, or `limit`: one that waits in a dead driver can not be killed.
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
  boost::asio::steady_timer restart_;
  Wakeup gone_;
  pid_t pid_ = -1;
  std::string line_;
  bool skipping_ = false;  // inside a line that is too long
  bool stopped_ = false;
  int restarts_ = 0;
};

/// The words that sortie-health is started with: `folders`, and what the runner's own environment
/// says for tests (runner/health/README.md).
std::vector<std::string> health_argv(const std::vector<std::string>& folders,
                                     char* const* environment);

}  // namespace sortie::runner
