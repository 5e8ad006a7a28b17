// What rounds come to.
#pragma once

#include <algorithm>
#include <vector>

namespace sortie::bench {

/// Of an even number of values the upper of the two in the middle. Not of none.
inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace sortie::bench
