// Milliseconds since boot, including the time in suspend. Unlike the wall clock, this clock never
// jumps when the system time is set. Unlike steady_clock, it advances during suspend.
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
