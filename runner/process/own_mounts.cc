#include "runner/process/own_mounts.h"

#include "common/base/atomic_file.h"

namespace sortie::runner {

const std::string& own_mounts() {
  static const std::string text = read_file("/proc/self/mountinfo").value_or("");
  return text;
}

}  // namespace sortie::runner
