// Compares the losses of two trainings.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <vector>

namespace sortie::trainer {

/// Checks that each element of `b` is within `relative` of its counterpart in `a`.
inline void check_close(const std::vector<double>& a, const std::vector<double>& b,
                        double relative) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(a[i] - b[i]) <= relative * std::abs(a[i]));
  }
}

}  // namespace sortie::trainer
