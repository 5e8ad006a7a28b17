#include "common/base/repeats.h"

#include <doctest/doctest.h>

#include <chrono>
#include <string>

namespace sortie {
namespace {

using std::chrono::seconds;

TEST_CASE("a repeated line passes once per period, with the number of those left out") {
  RepeatFilter filter(seconds(60));
  const RepeatFilter::Clock::time_point start{};
  CHECK(filter.pass("refused", start) == "refused");
  CHECK_FALSE(filter.pass("refused", start + seconds(1)));
  CHECK(filter.pass("another", start + seconds(2)) == "another");
  CHECK_FALSE(filter.pass("refused", start + seconds(59)));
  CHECK(filter.pass("refused", start + seconds(60)) ==
        "refused (2 more times since the last such line)");
  CHECK_FALSE(filter.pass("refused", start + seconds(61)));
  CHECK(filter.pass("refused", start + seconds(120)) ==
        "refused (1 more time since the last such line)");
  CHECK(filter.pass("refused", start + seconds(180)) == "refused");
}

TEST_CASE("made-up lines fill no memory: the oldest is forgotten, and passes again") {
  RepeatFilter filter(seconds(60));
  const RepeatFilter::Clock::time_point start{};
  for (std::size_t k = 0; k < RepeatFilter::kMostTexts; ++k)
    CHECK(filter.pass(std::to_string(k), start + seconds(k)));
  CHECK(filter.pass("one more", start + seconds(20)) == "one more");
  CHECK_FALSE(filter.pass("1", start + seconds(21)));
  CHECK(filter.pass("0", start + seconds(22)) == "0");
}

}  // namespace
}  // namespace sortie
