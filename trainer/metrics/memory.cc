#include "trainer/metrics/memory.h"

#include <fstream>
#include <string>

namespace sortie::trainer {

std::int64_t peak_memory_bytes() {
  std::ifstream status("/proc/self/status");
  std::string key;
  while (status >> key) {
    std::int64_t kibibytes = 0;
    if (key == "VmHWM:" && status >> kibibytes) return kibibytes * 1024;
    status.ignore(1 << 12, '\n');
  }
  return 0;
}

}  // namespace sortie::trainer
