// How much longer things may take in a test than in the release build on an idle machine.
#pragma once

#include <chrono>
#include <cstdlib>

namespace sortie::test {

/// Value of SORTIE_TEST_PATIENCE, which is above 1 for programs with a sanitizer
/// (tests/CMakeLists.txt).
inline int patience() {
  static const int factor = [] {
    const char* text = std::getenv("SORTIE_TEST_PATIENCE");
    const int number = text ? std::atoi(text) : 1;
    return number > 0 ? number : 1;
  }();
  return factor;
}

/// Scales a deadline, or a pause that must be longer than a deadline.
inline std::chrono::milliseconds patient(std::chrono::milliseconds time) {
  return time * patience();
}

}  // namespace sortie::test
