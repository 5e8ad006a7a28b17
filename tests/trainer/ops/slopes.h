// Compares gradients of f64 references with finite differences.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include "tests/trainer/ops/reference.h"

namespace sortie::trainer {

using reference::Vec;

inline double weighted(const Vec& y, const Vec& seed) {
  double sum = 0.0;
  for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * seed[i];
  return sum;
}

/// Compares `gradient` with (f(x + h) - f(x - h)) / 2h in every coordinate.
inline void check_gradient(const std::function<double(const Vec&)>& f, Vec x, const Vec& gradient) {
  REQUIRE(gradient.size() == x.size());
  constexpr double kStep = 1e-5;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double old = x[i];
    x[i] = old + kStep;
    const double up = f(x);
    x[i] = old - kStep;
    const double down = f(x);
    x[i] = old;
    const double slope = (up - down) / (2 * kStep);
    CAPTURE(i);
    CHECK(std::abs(slope - gradient[i]) <= 1e-7 * (1.0 + std::abs(slope)));
  }
}

}  // namespace sortie::trainer
