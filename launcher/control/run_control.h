// RunControl: gives other processes access to the supervisor while its run lasts (control socket),
// and writes result.json at its end.
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

  /// All references must outlive this object. If the socket can not be created, prints an error:
  /// the run continues, and only a signal can end it.
  RunControl(SupervisedRun& run, Console& console, RunFolder& folder, const SupervisorLock& lock,
             boost::asio::any_io_executor executor, CutLink cut_link);

  /// Writes result.json, then sends the end to all clients. Call after the I/O thread has stopped.
  void end(const Verdict& verdict);

 private:
  Console& console_;
  RunFolder& folder_;
  const double started_;
  ControlServer server_;
};

}  // namespace sortie::launcher
