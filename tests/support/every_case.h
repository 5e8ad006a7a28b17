// Whether a test runs all of its cases or one of each kind. scripts/ci_long sets SORTIE_EVERY_CASE,
// .ci/run does not.
#pragma once

#include <cstdlib>

namespace sortie::test {

inline bool every_case() {
  return std::getenv("SORTIE_EVERY_CASE") != nullptr;
}

}  // namespace sortie::test
