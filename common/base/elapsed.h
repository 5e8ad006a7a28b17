// Time that has passed on the monotonic clock.
#pragma once

#include <chrono>

namespace sortie {

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace sortie
