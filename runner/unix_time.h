// The wall clock of this host in milliseconds since 1970, as used in messages.
#pragma once

#include <chrono>
#include <cstdint>

namespace sortie::runner {

inline std::uint64_t unix_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
}

}  // namespace sortie::runner
