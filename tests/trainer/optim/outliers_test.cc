#include "trainer/optim/outliers.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using sortie::trainer::OutlierDetector;

TEST_CASE("a value far above those before it stands out, once the window is full") {
  OutlierDetector detector(4.0, 16);
  for (int i = 0; i < 15; ++i) detector.add(2.0 + 0.1 * (i % 2 == 0 ? 1 : -1));
  CHECK_FALSE(detector.stands_out(50.0));
  detector.add(1.9);
  CHECK(detector.stands_out(50.0));
  CHECK(detector.stands_out(2.6));
  CHECK_FALSE(detector.stands_out(2.3));
  CHECK_FALSE(detector.stands_out(-50.0));  // better than ever is no reason to skip
  CHECK_FALSE(detector.stands_out(std::numeric_limits<double>::quiet_NaN()));
  CHECK(detector.deviations(2.0) == doctest::Approx(0.0));
  CHECK(detector.deviations(2.4) == doctest::Approx(4.0));
}

TEST_CASE("one outlier hides no other, and a level that has changed is learned") {
  OutlierDetector detector(4.0, 16);
  for (int i = 0; i < 64; ++i) detector.add(2.0 + 0.1 * (i % 2 == 0 ? 1 : -1));
  detector.add(1e6);
  CHECK(detector.stands_out(10.0));
  int rejected = 0;
  while (detector.stands_out(4.0) && rejected < 100) {
    detector.add(4.0);
    ++rejected;
  }
  CHECK(rejected > 2);
  CHECK(rejected < 64);
}

TEST_CASE("values that are all alike do not make the next one an outlier by rounding") {
  OutlierDetector detector(3.0, 4);
  for (int i = 0; i < 10; ++i) detector.add(0.1);
  CHECK_FALSE(detector.stands_out(std::nextafter(0.1, 1.0)));
  CHECK(detector.stands_out(0.2));
}

TEST_CASE("limit 0 rejects nothing, and a state taken over goes on alike") {
  OutlierDetector off(0.0, 4), detector(3.0, 4), copy(3.0, 4);
  for (int i = 0; i < 10; ++i) {
    off.add(i % 3);
    detector.add(i % 3);
  }
  CHECK_FALSE(off.stands_out(1e9));
  copy.set_state(detector.state());
  copy.add(7.0);
  detector.add(7.0);
  CHECK(copy.state() == detector.state());
}
