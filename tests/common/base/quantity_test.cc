// Numbers and durations formatted for people.
#include "common/base/quantity.h"

#include <doctest/doctest.h>

#include <cmath>
#include <utility>
#include <vector>

namespace sortie {
namespace {

TEST_CASE("short numbers") {
  for (const auto& [value, text] : std::vector<std::pair<double, std::string>>{{0, "0"},
                                                                               {512, "512"},
                                                                               {0.5, "0.50"},
                                                                               {999, "999"},
                                                                               {1000, "1.00k"},
                                                                               {45600, "45.6k"},
                                                                               {1.234e6, "1.23M"},
                                                                               {999.6e6, "1.00G"},
                                                                               {4.2e13, "42.0T"},
                                                                               {-1500, "-1.50k"},
                                                                               {NAN, "-"},
                                                                               {INFINITY, "-"}}) {
    CAPTURE(value);
    CHECK(short_number(value) == text);
  }
}

TEST_CASE("counted things are one or several") {
  CHECK(counted(0, "rank") == "0 ranks");
  CHECK(counted(1, "rank") == "1 rank");
  CHECK(counted(2, "rank") == "2 ranks");
}

TEST_CASE("short times") {
  for (const auto& [value, text] : std::vector<std::pair<double, std::string>>{{0, "0s"},
                                                                               {42.4, "42s"},
                                                                               {59.6, "1m00s"},
                                                                               {185, "3m05s"},
                                                                               {3599.6, "1h00m"},
                                                                               {3720, "1h02m"},
                                                                               {172799, "47h59m"},
                                                                               {360000, "4d04h"},
                                                                               {7776000, "90d00h"},
                                                                               {-1, "-"},
                                                                               {NAN, "-"},
                                                                               {INFINITY, "-"},
                                                                               {1e300, "-"}}) {
    CAPTURE(value);
    CHECK(short_time(value) == text);
  }
}

}  // namespace
}  // namespace sortie
