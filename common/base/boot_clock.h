// Milliseconds since this machine started, the time that it slept included. Unlike the wall clock
// it never jumps, whoever sets the time; unlike steady_clock it goes on while the machine sleeps.
#pragma once

#include <time.h>

#include <cstdint>

namespace sortie {

inline std::int64_t boot_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

}  // namespace sortie
