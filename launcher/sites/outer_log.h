// OuterLog: the coordinator's lines on disk (outer.log in the run's folder), by a thread of its
// own. Each line says by which supervisor, and what one writes that was replaced counts for
// nothing.
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

namespace sortie::launcher {

class FileThread;

class OuterLog {
 public:
  struct Opened;

  /// Takes the log over for the supervisor of `epoch`, and reads what those before have written:
  /// lines for OuterCoordinator::restore(). ErrorCode::io; ErrorCode::lost: a later supervisor has
  /// it.
  static Result<Opened> open(const std::filesystem::path& run, unsigned epoch,
                             boost::asio::any_io_executor executor);
  OuterLog(OuterLog&&) noexcept;
  OuterLog& operator=(OuterLog&&) = delete;
  /// Waits for what is under way.
  ~OuterLog();

  /// Appends the lines, and runs `done` on the executor when they are on disk or can not be; in
  /// the order of the calls. Nothing is written once a later supervisor has taken its place:
  /// ErrorCode::lost.
  void append(std::vector<std::string> lines, std::function<void(Result<>)> done);

 private:
  struct State;
  OuterLog();

  std::shared_ptr<State> state_;
  std::unique_ptr<FileThread> thread_;  // uses the one above
};

struct OuterLog::Opened {
  OuterLog log;
  std::string lines;
};

/// The lines of such a log that count, in their order; pure.
std::string lines_that_count(std::string_view text);

}  // namespace sortie::launcher
