#include "common/base/quantity.h"

#include <fmt/core.h>

#include <cmath>
#include <cstddef>
#include <iterator>

namespace sortie {

std::string short_number(double value) {
  if (!std::isfinite(value)) return "-";
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P"};
  std::size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  const int decimals = unit == 0 && value == std::floor(value) ? 0
                       : std::abs(value) < 9.995               ? 2
                       : std::abs(value) < 99.95               ? 1
                                                               : 0;
  return fmt::format("{:.{}f}{}", value, decimals, kUnits[unit]);
}

std::string counted(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string short_time(double seconds) {
  if (!(seconds >= 0 && seconds < 1e12)) return "-";
  const auto whole = std::llround(seconds);
  constexpr long long kDay = 24 * 3600;
  if (whole >= 2 * kDay) return fmt::format("{}d{:02}h", whole / kDay, whole / 3600 % 24);
  if (whole >= 3600) return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
  if (whole >= 60) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}s", whole);
}

}  // namespace sortie
