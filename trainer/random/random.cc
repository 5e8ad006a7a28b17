#include "trainer/random/random.h"

#include <cmath>

#include "trainer/random/portable_math.h"

#include "common/base/fnv1a.h"

namespace sortie::trainer {

float random_normal(std::uint64_t key, std::uint64_t index) {
  const std::uint64_t pair = index & ~std::uint64_t{1};
  const double radius =
      std::sqrt(-2.0 * portable_log(random_uniform(key, pair)));  // sqrt is exact by IEEE
  const double turns = random_uniform(key, pair + 1);
  return static_cast<float>(
      radius * ((index & 1) ? portable_sin_of_turns(turns) : portable_cos_of_turns(turns)));
}

std::uint64_t random_key(std::uint64_t seed, std::string_view name) {
  return random_bits(fnv1a_64(name), seed);
}

}  // namespace sortie::trainer
