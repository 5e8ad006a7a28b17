#include "trainer/random/portable_math.h"

#include <numbers>

#include "trainer/random/uncontracted.h"

namespace sortie::trainer {

double portable_cos_of_turns(double turns) {
  return uncontracted::cos_of_turns(turns);
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
