#include "trainer/ops/outliers.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using namespace sortie::trainer;

namespace {

/// A limit, and the state after the values that were added.
struct Seen {
  OutlierLimit limit;
  OutlierState state{};
  void add(double value) { add_value(state, limit, value); }
  bool out(double value) const { return stands_out(state, limit, value); }
};

}  // namespace

TEST_CASE("a value far above those before it stands out, once the window is full") {
  Seen seen{{4.0, 16}};
  for (int i = 0; i < 15; ++i) seen.add(2.0 + 0.1 * (i % 2 == 0 ? 1 : -1));
  CHECK_FALSE(seen.out(50.0));
  seen.add(1.9);
  CHECK(seen.out(50.0));
  CHECK(seen.out(2.6));
  CHECK_FALSE(seen.out(2.3));
  CHECK_FALSE(seen.out(-50.0));  // a value that is better than ever is no outlier
  CHECK_FALSE(seen.out(std::numeric_limits<double>::quiet_NaN()));
  CHECK(deviations(seen.state, 2.0) == doctest::Approx(0.0));
  CHECK(deviations(seen.state, 2.4) == doctest::Approx(4.0));
}

TEST_CASE("one outlier hides no other, and a level that has changed is learned") {
  Seen seen{{4.0, 16}};
  for (int i = 0; i < 64; ++i) seen.add(2.0 + 0.1 * (i % 2 == 0 ? 1 : -1));
  seen.add(1e6);
  CHECK(seen.out(10.0));
  int rejected = 0;
  while (seen.out(4.0) && rejected < 100) {
    seen.add(4.0);
    ++rejected;
  }
  CHECK(rejected > 2);
  CHECK(rejected < 64);
}

TEST_CASE("values that are all alike do not make the next one an outlier by rounding") {
  Seen seen{{3.0, 4}};
  for (int i = 0; i < 10; ++i) seen.add(0.1);
  CHECK_FALSE(seen.out(std::nextafter(0.1, 1.0)));
  CHECK(seen.out(0.2));
}

TEST_CASE("limit 0 rejects nothing, and a state taken over goes on alike") {
  Seen off{{0.0, 4}}, seen{{3.0, 4}};
  for (int i = 0; i < 10; ++i) {
    off.add(i % 3);
    seen.add(i % 3);
  }
  CHECK_FALSE(off.out(1e9));
  Seen copy{{3.0, 4}, seen.state};
  copy.add(7.0);
  seen.add(7.0);
  CHECK(copy.state == seen.state);
}
