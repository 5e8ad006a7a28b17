// IEEE additions, multiplications and divisions alone, each rounded by itself: this file is
// compiled without contraction to FMA. The polynomials for log, sin and cos are those of fdlibm
// (Sun Microsystems 1993), errors below 1 ulp on the reduced arguments.
#include "trainer/random/portable_math.h"

#include <bit>
#include <numbers>

namespace sortie::trainer {
namespace {

constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;

/// For |x| <= pi / 4.
double sine(double x) {
  const double z = x * x;
  const double r = 8.33333333332248946124e-03 +
                   z * (-1.98412698298579493134e-04 +
                        z * (2.75573137070700676789e-06 +
                             z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)));
  return x + z * x * (-1.66666666666666324348e-01 + z * r);
}

double cosine(double x) {
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

/// The quarter turn next to `turns`, and the angle from there.
struct Angle {
  int quarter;
  double rest;
};
Angle angle_of(double turns) {
  const int quarter = static_cast<int>(4.0 * turns + 0.5);
  return {quarter & 3, (turns - 0.25 * quarter) * (2.0 * std::numbers::pi)};
}

}  // namespace

double portable_log(double x) {
  // x = 2^k (1 + f) with 1 + f between sqrt(1/2) and sqrt(2).
  const auto bits = std::bit_cast<std::uint64_t>(x);
  auto k = static_cast<std::int64_t>(bits >> 52) - 1023;
  double mantissa = std::bit_cast<double>((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  if (mantissa > std::numbers::sqrt2) {
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

double portable_sin_of_turns(double turns) {
  const Angle angle = angle_of(turns);
  const double value = (angle.quarter & 1) ? cosine(angle.rest) : sine(angle.rest);
  return (angle.quarter & 2) ? -value : value;
}

double portable_cos_of_turns(double turns) {
  const Angle angle = angle_of(turns);
  const double value = (angle.quarter & 1) ? -sine(angle.rest) : cosine(angle.rest);
  return (angle.quarter & 2) ? -value : value;
}

double portable_exp2(double x) {
  // e^y for |y| <= ln 2 / 2 by its series: the first term left out is below 2^-70.
  const bool halve = x < -0.5;
  const double y = (halve ? x + 1.0 : x) * std::numbers::ln2;
  double sum = 1.0;
  for (int n = 16; n > 0; --n) sum = 1.0 + sum * y / n;
  return halve ? 0.5 * sum : sum;
}

}  // namespace sortie::trainer
