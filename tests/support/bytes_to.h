// Sums of planned traffic, for tests of plans.
#pragma once

#include <string_view>

#include "trainer/parallel/counting.h"

namespace sortie::trainer::test {

/// Bytes sent to all destinations in `group`.
inline double bytes_to(const SentBytes& sent, std::string_view group) {
  double bytes = 0.0;
  for (const auto& [to, count] : sent)
    if (to.group == group) bytes += count;
  return bytes;
}

}  // namespace sortie::trainer::test
