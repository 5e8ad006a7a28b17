// Tests of the functions behind initial values and schedules: they are right to the last bits, and
// have the same bits everywhere.
#include "trainer/random/portable_math.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <iterator>
#include <numbers>
#include <tuple>

#include "trainer/random/random.h"
#include "trainer/random/uncontracted.h"

using namespace sortie::trainer;

namespace {

constexpr int kPoints = 200000;

/// FNV-1a over the bits of values.
struct Bits {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  void add(double value) {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    for (int byte = 0; byte < 8; ++byte)
      hash = (hash ^ (bits >> (8 * byte) & 0xff)) * 0x100000001b3ull;
  }
};

}  // namespace

TEST_CASE("random bits are the published sequence of SplitMix64") {
  constexpr std::uint64_t kPublished[] = {6457827717110365317u, 3203168211198807973u,
                                          9817491932198370423u, 4593380528125082431u,
                                          16408922859458223821u};
  for (std::uint64_t i = 0; i < std::size(kPublished); ++i)
    CHECK(random_bits(1234567, i) == kPublished[i]);
}

TEST_CASE("portable functions are right to the last bits") {
  double worst = 0.0;
  const auto compare = [&](double value, double exact, double scale) {
    worst = std::max(worst, std::abs(value - exact) / scale);
  };
  for (std::uint64_t i = 0; i < kPoints; ++i) {
    const double u = random_uniform(11, i);
    compare(uncontracted::log(u), std::log(u), std::abs(std::log(u)));
    compare(uncontracted::log(u * 1e-300), std::log(u * 1e-300), 700.0);
    compare(uncontracted::sin_of_turns(u), std::sin(2.0 * std::numbers::pi * u), 1.0);
    compare(portable_cos_of_turns(u), std::cos(2.0 * std::numbers::pi * u), 1.0);
    compare(portable_exp2(-u), std::exp2(-u), std::exp2(-u));
  }
  CHECK(worst < 2e-15);  // the library's angle 2 pi u is rounded itself
  for (const auto& [turns, sine, cosine] : {std::tuple{0.0, 0.0, 1.0},
                                            {0.25, 1.0, 0.0},
                                            {0.5, 0.0, -1.0},
                                            {0.75, -1.0, 0.0},
                                            {1.0, 0.0, 1.0}}) {
    CAPTURE(turns);
    CHECK(uncontracted::sin_of_turns(turns) == sine);
    CHECK(portable_cos_of_turns(turns) == cosine);
  }
  CHECK(uncontracted::log(1.0) == 0.0);
  CHECK(portable_exp2(0.0) == 1.0);
  CHECK(portable_exp2(-1.0) == 0.5);
  CHECK(portable_power(0.9, 0) == 1.0);
  CHECK(portable_power(2.0, 40) == 0x1p40);
  CHECK(portable_power(0.999, 1000) == doctest::Approx(std::pow(0.999, 1000)).epsilon(1e-12));
}

TEST_CASE("portable functions have the same bits on every CPU, compiler and libm") {
  // tests/trainer/nn/portable_math.py computed the values, in another language.
  Bits logs, sines, cosines, powers;
  for (std::uint64_t i = 0; i < 4096; ++i) {
    const double u = random_uniform(11, i);
    logs.add(uncontracted::log(u));
    sines.add(uncontracted::sin_of_turns(u));
    cosines.add(portable_cos_of_turns(u));
    powers.add(portable_exp2(-u));
    powers.add(portable_power(u, static_cast<std::int64_t>(i % 100)));
  }
  CHECK(logs.hash == 0x3353ae0cfd627e35ull);
  CHECK(sines.hash == 0x3bfb277fdc8397dcull);
  CHECK(cosines.hash == 0xe1c21b4c11c8099ull);
  CHECK(powers.hash == 0xc547b77513ea24e8ull);
}
