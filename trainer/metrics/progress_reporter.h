// Reports to the runner where this rank is, from a separate thread. A rank that hangs is detected
// because this thread continues to report. The same thread writes the stacks of all threads when
// the runner requests them (SIGQUIT).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "trainer/metrics/progress_marks.h"

namespace sortie::trainer {

/// Returns the line that the runner reads; common/training/README.md describes its members.
std::string progress_line(const ProgressMarks::Seen& seen);

class ProgressReporter {
 public:
  /// Sends one line at once and one when the section `start` is left. After that it sends a line
  /// every 250 ms if something has changed, otherwise every second. `marks` must outlive the
  /// reporter. `file_work` counts file operations, which are progress while a checkpoint is saved;
  /// it may be empty. At most one reporter exists per process, because it handles SIGQUIT.
  /// ErrorCode::io if the connection to the socket fails.
  static Result<std::unique_ptr<ProgressReporter>> start(const std::string& socket_path,
                                                         ProgressMarks& marks,
                                                         std::function<std::uint64_t()> file_work);
  /// Reports the last state and joins the thread.
  ~ProgressReporter();
  ProgressReporter(const ProgressReporter&) = delete;
  ProgressReporter& operator=(const ProgressReporter&) = delete;

 private:
  struct Parts;
  explicit ProgressReporter(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace sortie::trainer
