// The arithmetic of portable_math.h and random.h, for host and device code: only IEEE additions,
// multiplications, divisions and square roots, each rounded separately. Files that include this are
// compiled without contraction to FMA (-ffp-contract=off, --fmad=false). The polynomials for log,
// sin and cos are those of fdlibm (Sun Microsystems 1993), with errors below 1 ulp on the reduced
// arguments.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/base/host_device.h"
#include "trainer/random/random.h"

namespace sortie::trainer::uncontracted {

constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;
constexpr double kTwoPi = 6.283185307179586476925286766559, kSqrt2 = 1.4142135623730950488;

/// For |x| <= pi / 4.
SORTIE_HOST_DEVICE inline double sine(double x) {
  const double z = x * x;
  const double r = 8.33333333332248946124e-03 +
                   z * (-1.98412698298579493134e-04 +
                        z * (2.75573137070700676789e-06 +
                             z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)));
  return x + z * x * (-1.66666666666666324348e-01 + z * r);
}

SORTIE_HOST_DEVICE inline double cosine(double x) {
  const double z = x * x;
  const double r =
      z * (4.16666666666666019037e-02 +
           z * (-1.38888888888741095749e-03 +
                z * (2.48015872894767294178e-05 +
                     z * (-2.75573143513906633035e-07 +
                          z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11)))));
  const double half = 0.5 * z;
  const double w = 1.0 - half;
  return w + ((1.0 - w) - half + z * r);
}

/// The quarter turn nearest to `turns`, and the remaining angle in radians.
struct Angle {
  int quarter;
  double rest;
};
SORTIE_HOST_DEVICE inline Angle angle_of(double turns) {
  const int quarter = static_cast<int>(4.0 * turns + 0.5);
  return {quarter & 3, (turns - 0.25 * quarter) * kTwoPi};
}

/// Natural logarithm of a normal number above 0.
SORTIE_HOST_DEVICE inline double log(double x) {
  // x = 2^k (1 + f) with 1 + f between sqrt(1/2) and sqrt(2).
  std::uint64_t bits = 0;
  memcpy(&bits, &x, sizeof bits);
  auto k = static_cast<std::int64_t>(bits >> 52) - 1023;
  const std::uint64_t of_mantissa = (bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull;
  double mantissa = 0.0;
  memcpy(&mantissa, &of_mantissa, sizeof mantissa);
  if (mantissa > kSqrt2) {
    mantissa *= 0.5;
    ++k;
  }
  const double f = mantissa - 1.0, e = static_cast<double>(k);
  const double s = f / (2.0 + f), z = s * s, w = z * z;
  const double odd = w * (3.999999999940941908e-01 +
                          w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  const double even = z * (6.666666666666735130e-01 +
                           w * (2.857142874366239149e-01 +
                                w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  const double half = 0.5 * f * f;
  return e * kLn2High - ((half - (s * (half + (odd + even)) + e * kLn2Low)) - f);
}

/// Sine and cosine of 2 pi `turns`, for turns in [0, 1].
SORTIE_HOST_DEVICE inline double sin_of_turns(double turns) {
  const Angle angle = angle_of(turns);
  const double value = (angle.quarter & 1) ? cosine(angle.rest) : sine(angle.rest);
  return (angle.quarter & 2) ? -value : value;
}

SORTIE_HOST_DEVICE inline double cos_of_turns(double turns) {
  const Angle angle = angle_of(turns);
  const double value = (angle.quarter & 1) ? -sine(angle.rest) : cosine(angle.rest);
  return (angle.quarter & 2) ? -value : value;
}

/// random_normal() of random.h.
SORTIE_HOST_DEVICE inline float normal(std::uint64_t key, std::uint64_t index) {
  const std::uint64_t pair = index & ~std::uint64_t{1};
  const double radius = sqrt(-2.0 * log(random_uniform(key, pair)));
  const double turns = random_uniform(key, pair + 1);
  return static_cast<float>(radius * ((index & 1) ? sin_of_turns(turns) : cos_of_turns(turns)));
}

}  // namespace sortie::trainer::uncontracted
