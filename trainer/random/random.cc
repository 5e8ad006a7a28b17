#include "trainer/random/random.h"

#include "common/base/fnv1a.h"
#include "trainer/random/uncontracted.h"

namespace sortie::trainer {

float random_normal(std::uint64_t key, std::uint64_t index) {
  return uncontracted::normal(key, index);
}

std::uint64_t random_key(std::uint64_t seed, std::string_view name) {
  return random_bits(fnv1a_64(name), seed);
}

}  // namespace sortie::trainer
