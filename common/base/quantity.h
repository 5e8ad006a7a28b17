// Short, readable forms of numbers and durations.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sortie {

/// Three significant digits and a decimal unit: "1.23M", "45.6k", "512"; "-" if not finite.
std::string short_number(double value);

/// "1 rank", "2 ranks": a noun whose plural ends in s.
std::string counted(std::uint64_t count, std::string_view noun);

/// "4d03h" from two days on, "1h02m", "3m05s", "42s"; "-" if negative, not finite or at least 1e12.
std::string short_time(double seconds);

}  // namespace sortie
