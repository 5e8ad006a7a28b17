// Counts the descriptors of this process, to detect leaks.
#pragma once

#include <filesystem>

namespace sortie::test {

inline std::size_t open_files() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

}  // namespace sortie::test
