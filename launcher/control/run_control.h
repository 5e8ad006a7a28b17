// RunControl: what a supervisor offers to other processes while its run lasts, and what it leaves
// when it ends: the control socket and result.json.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "launcher/control/control_server.h"
#include "launcher/control/supervisor_lock.h"

namespace sortie::launcher {

class Console;
class RunFolder;
class SupervisedRun;
struct Verdict;

class RunControl {
 public:
  /// Cuts the link to a host (TransportRouter::cut_link).
  using CutLink = std::function<void(const std::string& host, std::chrono::milliseconds time)>;

  /// All references must outlive it. A socket that can not be made is said on the console: the run
  /// goes on, and can be ended by a signal only.
  RunControl(SupervisedRun& run, Console& console, RunFolder& folder, const SupervisorLock& lock,
             boost::asio::any_io_executor executor, CutLink cut_link);

  /// Writes result.json, then tells everybody who listens. After the I/O thread has stopped.
  void end(const Verdict& verdict);

 private:
  Console& console_;
  RunFolder& folder_;
  const double started_;
  ControlServer server_;
};

}  // namespace sortie::launcher
