// One call of a container engine's client: started, read and ended without ever blocking the
// runner. A keeper holds the client, so that it ends with the runner, and with everything it may
// have started.
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
  std::vector<std::string> variables;  // "NAME=value", over those of the runner
  bool detaches = false;               // leaves a process behind that is to live on
  std::string folder;                  // with a lock; removed by the keeper if the runner is killed
  std::chrono::milliseconds limit{0};
  std::function<void(std::string_view)> on_line;  // each line of both streams, as it comes
  std::function<bool()> cancelled;                // asked now and then; true ends the call
};

class EngineCalls {
 public:
  EngineCalls(boost::asio::io_context& io, const ProcessDefaults& defaults)
      : io_(io), defaults_(defaults) {}

  /// Told of every keeper, before anything of it can be reaped.
  std::function<void(pid_t)> on_keeper;

  /// ErrorCode::timeout, ErrorCode::spawn, ErrorCode::interrupted. An exit code is no error.
  boost::asio::awaitable<Result<CallOutput>> run(Call call);

 private:
  boost::asio::io_context& io_;
  const ProcessDefaults& defaults_;
};

}  // namespace sortie::runner::container
