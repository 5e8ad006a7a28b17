// Runs the client of a container engine without blocking the runner. A keeper holds the client, so
// the client and everything that it starts end with the runner.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "common/base/process_status.h"
#include "common/base/result.h"
#include "runner/process/held_process.h"
#include "runner/process/process_defaults.h"

namespace sortie::runner::container {

struct CallOutput {
  ProcessStatus status;
  std::string out, err;  // at most 4 MiB and 64 KiB
};

struct Call {
  std::vector<std::string> argv;       // argv[0] is a path
  std::vector<std::string> variables;  // "NAME=value"; they override the runner's
  bool detaches = false;               // leaves a process behind that must survive
  std::string folder;                  // has a lock; the keeper removes it if the runner is killed
  std::chrono::milliseconds limit{0};
  std::function<void(std::string_view)> on_line;  // receives each line of both streams
  std::function<bool()> cancelled;                // polled; true ends the call
};

class EngineCalls {
 public:
  EngineCalls(boost::asio::io_context& io, const ProcessDefaults& defaults)
      : io_(io), defaults_(defaults) {}

  /// Receives the pid of every keeper, before anything of it can be reaped.
  std::function<void(pid_t)> on_keeper;

  /// Runs the call to its end. ErrorCode::timeout, ErrorCode::spawn, ErrorCode::interrupted
  /// (cancelled). A non-zero exit code is no error.
  boost::asio::awaitable<Result<CallOutput>> run(Call call);

 private:
  boost::asio::io_context& io_;
  const ProcessDefaults& defaults_;
};

}  // namespace sortie::runner::container
