// Tests of the estimate of the remaining time: smoothed, and with the validations and saves that
// are due.
#include "trainer/loop/pace.h"

#include <doctest/doctest.h>

namespace sortie::trainer {
namespace {

TEST_CASE("the first step counts only while it is alone") {
  Pace pace({});
  pace.step(9.0);
  CHECK(pace.step_seconds() == 9.0);
  pace.step(1.0);
  CHECK(pace.step_seconds() == 1.0);
  pace.step(2.0);
  CHECK(pace.step_seconds() == doctest::Approx(1.5).epsilon(0.05));
}

TEST_CASE("short and long steps by turns have the mean of both") {
  Pace pace({});
  for (int i = 0; i < 1000; ++i) pace.step(i % 2 == 0 ? 0.1 : 1.0);
  CHECK(pace.step_seconds() == doctest::Approx(0.55).epsilon(0.05));
}

TEST_CASE("one slow step hardly moves the mean, a slower pace takes over within a minute") {
  Pace pace({});
  for (int i = 0; i < 1000; ++i) pace.step(0.1);
  pace.step(5.0);
  CHECK(pace.step_seconds() < 0.13);
  for (int i = 0; i < 300; ++i) pace.step(0.2);
  CHECK(pace.step_seconds() == doctest::Approx(0.2).epsilon(0.1));
}

TEST_CASE("what is left counts the validations and saves that are due, the last ones too") {
  Pace pace({/*validation=*/10, /*save=*/40, /*validates=*/true, /*saves=*/true});
  pace.step(1.0);
  pace.validation(5.0);
  pace.save(20.0);
  // 95 steps; validations after 10, 20 ... 90 and the last one; saves after 40, 80 and the last
  // one.
  CHECK(pace.remaining(5, 95) == doctest::Approx(90 + 10 * 5 + 3 * 20));
  CHECK(pace.remaining(90, 95) == doctest::Approx(5 + 5 + 20));
  CHECK(pace.remaining(95, 95) == 0.0);
  CHECK(pace.whole_step_seconds() == doctest::Approx(1 + 0.5 + 0.5));
}

TEST_CASE("without intervals there is one save, at the end, and no validation") {
  Pace pace({0, 0, false, true});
  pace.step(1.0);
  pace.save(4.0);
  CHECK(pace.remaining(0, 10) == doctest::Approx(14));
  CHECK(pace.whole_step_seconds() == 1.0);
}

}  // namespace
}  // namespace sortie::trainer
