// /dev/kmsg from now on, record by record; or, for tests, a file of such records that grows.
#pragma once

#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/health/finding.h"

namespace sortie::runner::health {

class KernelLog {
 public:
  /// Error: it can not be read (kernel.dmesg_restrict keeps it from ordinary users).
  static Result<KernelLog> open(const std::string& path);

  /// Readable when there may be something new.
  int fd() const { return watch_ ? watch_.get() : log_.get(); }
  /// Takes what is there, at most some thousand records; false when it can not be read any more.
  bool read(std::vector<sortie::health::Finding>& findings);

 private:
  bool read_device(std::vector<sortie::health::Finding>& findings);
  bool read_file(std::vector<sortie::health::Finding>& findings);

  Fd log_, watch_;    // watch_: of a file that grows
  std::string line_;  // of a file, not complete yet
};

}  // namespace sortie::runner::health
