// Tells the runner where this rank is, from a thread of its own: a rank that hangs is seen because
// that thread goes on saying so. The same thread writes the stacks of all threads when the runner
// asks for them (SIGQUIT).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "trainer/metrics/progress_marks.h"

namespace sortie::trainer {

/// The line that the runner reads; common/training/README.md has its members.
std::string progress_line(const ProgressMarks::Seen& seen);

class ProgressReporter {
 public:
  /// One line at once and one when `start` is left, then one every 250 ms in which something has
  /// changed, and one a second in which nothing has. `marks` must outlive the reporter; `file_work`
  /// counts operations on files, which are a sign of progress while a checkpoint is saved, and may
  /// be empty. One at a time in a process, since it takes SIGQUIT. ErrorCode::io when the socket
  /// can not be reached.
  static Result<std::unique_ptr<ProgressReporter>> start(const std::string& socket_path,
                                                         ProgressMarks& marks,
                                                         std::function<std::uint64_t()> file_work);
  /// Tells the last state before it goes.
  ~ProgressReporter();
  ProgressReporter(const ProgressReporter&) = delete;
  ProgressReporter& operator=(const ProgressReporter&) = delete;

 private:
  struct Parts;
  explicit ProgressReporter(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace sortie::trainer
