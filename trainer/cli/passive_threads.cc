#include "trainer/cli/passive_threads.h"

#include <immintrin.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

#include "common/base/log.h"

namespace sortie::trainer {
namespace {

constexpr std::chrono::microseconds kSpin{25};

/// Returns how many iterations of libgomp's loop (a load and PAUSE) fill kSpin. PAUSE takes 40 to
/// 140 cycles, depending on the CPU.
long iterations_of_spin() {
  using Clock = std::chrono::steady_clock;
  constexpr int kPauses = 200;
  Clock::duration shortest = Clock::duration::max();  // the one that nothing has interrupted
  for (int k = 0; k < 5; ++k) {
    const auto begin = Clock::now();
    for (int pause = 0; pause < kPauses; ++pause) _mm_pause();
    shortest = std::min(shortest, Clock::now() - begin);
  }
  const double nanoseconds = std::chrono::duration<double, std::nano>(shortest).count() / kPauses;
  const double spin = std::chrono::duration<double, std::nano>(kSpin).count();
  return std::clamp(static_cast<long>(spin / std::max(nanoseconds, 1.0)), 100L, 10000L);
}

}  // namespace

void make_threads_wait_passively(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  ::setenv("OMP_WAIT_POLICY", "passive", 1);
  ::setenv("GOMP_SPINCOUNT", std::to_string(iterations_of_spin()).c_str(), 1);
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
