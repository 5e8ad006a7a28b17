// Reads new records of /dev/kmsg; for tests, of a growing file of such records.
#pragma once

#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/health/finding.h"

namespace sortie::runner::health {

class KernelLog {
 public:
  /// Starts at the end of the log. Error: it can not be read (kernel.dmesg_restrict excludes
  /// ordinary users).
  static Result<KernelLog> open(const std::string& path);

  /// Readable if there may be new records.
  int fd() const { return watch_ ? watch_.get() : log_.get(); }
  /// Reads the available records, at most some thousand. Returns false if the log can not be read
  /// any more.
  bool read(std::vector<sortie::health::Finding>& findings);

 private:
  bool read_device(std::vector<sortie::health::Finding>& findings);
  bool read_file(std::vector<sortie::health::Finding>& findings);

  Fd log_, watch_;    // watch_: inotify on a regular file
  std::string line_;  // incomplete line of a regular file
};

}  // namespace sortie::runner::health
