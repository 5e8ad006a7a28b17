#include "trainer/cli/passive_threads.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "common/base/log.h"

namespace sortie::trainer {

void make_threads_wait_passively(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  ::setenv("OMP_WAIT_POLICY", "passive", 1);
  // By its path, so that ps and pkill show the program's name and not "exe".
  std::error_code unreadable;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", unreadable);
  if (!unreadable) ::execv(program.c_str(), argv);
  ::execv("/proc/self/exe", argv);
  log::warning(
      "compute threads spin while they wait: /proc/self/exe can not be started again: {}; set "
      "OMP_WAIT_POLICY=passive where other programs need the CPU",
      std::strerror(errno));
}

}  // namespace sortie::trainer
