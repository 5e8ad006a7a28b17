#include "trainer/cli/passive_threads.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "common/base/log.h"

namespace sortie::trainer {

void make_threads_wait_passively(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  ::setenv("OMP_WAIT_POLICY", "passive", 1);
  ::execv("/proc/self/exe", argv);
  log::warning(
      "compute threads spin while they wait: /proc/self/exe can not be started again: {}; set "
      "OMP_WAIT_POLICY=passive where other programs need the CPU",
      std::strerror(errno));
}

}  // namespace sortie::trainer
