// Findings of the threads that may wait for a driver or a disk, for the main thread to report.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/base/fd.h"
#include "common/health/finding.h"

namespace sortie::runner::health {

using sortie::health::Finding;
using sortie::health::Kind;

class Inbox {
 public:
  Inbox();
  /// Readable when something is in it; -1 where the system gave none.
  int fd() const { return event_.get(); }
  /// From any thread.
  void put(Finding finding);
  std::vector<Finding> take();

  /// NVML's number and UUID of the GPU at a PCI address; messages of the kernel have the address
  /// alone. From any thread.
  void name_gpu(const std::string& pci, int number, std::string uuid);
  void add_gpu_names(Finding& finding) const;

 private:
  Fd event_;
  mutable std::mutex mutex_;
  std::vector<Finding> findings_;
  std::map<std::string, std::pair<int, std::string>> gpus_;
};

/// Seconds on a clock that never jumps.
double steady_seconds();

}  // namespace sortie::runner::health
