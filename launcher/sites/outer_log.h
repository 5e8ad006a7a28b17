// OuterLog: writes the coordinator's lines to disk (outer.log in the run folder) on a separate
// thread. Each line names the supervisor that wrote it. Lines of a supervisor that has been
// replaced are ignored.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie {
class FileThread;
}

namespace sortie::launcher {

class OuterLog {
 public:
  struct Opened;

  /// Takes over the log for the supervisor of `epoch` and reads the lines of earlier supervisors,
  /// for OuterCoordinator::restore(). ErrorCode::io, or ErrorCode::lost if a later supervisor has
  /// taken over.
  static Result<Opened> open(const std::filesystem::path& run, unsigned epoch,
                             boost::asio::any_io_executor executor);
  OuterLog(OuterLog&&) noexcept;
  OuterLog& operator=(OuterLog&&) = delete;
  /// Blocks until the queued writes are done.
  ~OuterLog();

  /// Appends the lines, and runs `done` on the executor when they are on disk or the write has
  /// failed, in the order of the calls. After a later supervisor has taken over, nothing is
  /// written: ErrorCode::lost.
  void append(std::vector<std::string> lines, std::function<void(Result<>)> done);

 private:
  struct State;
  OuterLog();

  std::shared_ptr<State> state_;
  std::unique_ptr<FileThread> thread_;  // uses state_
};

struct OuterLog::Opened {
  OuterLog log;
  std::string lines;
};

/// Returns the lines of the log `text` that count, in their order, and an empty line for each other
/// one. A damaged line at the end, or before a supervisor begins, does not count. ErrorCode::data
/// names any other one. Pure.
Result<std::string> lines_that_count(std::string_view text);

}  // namespace sortie::launcher
