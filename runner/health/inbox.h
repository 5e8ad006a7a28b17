// Queue of findings from the threads that may block on a driver or a disk to the main thread, which
// reports them.
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
  /// Readable if the inbox is not empty; -1 if no eventfd could be created.
  int fd() const { return event_.get(); }
  /// Thread-safe.
  void put(Finding finding);
  std::vector<Finding> take();

  /// Records NVML's number and UUID of the GPU at a PCI address; kernel messages contain only the
  /// address. Thread-safe.
  void name_gpu(const std::string& pci, int number, std::string uuid);
  void add_gpu_names(Finding& finding) const;

 private:
  Fd event_;
  mutable std::mutex mutex_;
  std::vector<Finding> findings_;
  std::map<std::string, std::pair<int, std::string>> gpus_;
};

/// Seconds on a monotonic clock.
double steady_seconds();

}  // namespace sortie::runner::health
