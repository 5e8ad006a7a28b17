// The median of the rounds of a benchmark.
#pragma once

#include <algorithm>
#include <vector>

namespace sortie::bench {

/// For an even number of values, returns the upper of the two in the middle. `values` must not be
/// empty.
inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace sortie::bench
