// Numbers and times in the few characters that a person reads at a glance.
#pragma once

#include <string>

namespace sortie {

/// Three digits and a decimal unit: "1.23M", "45.6k", "512"; "-" when it is not finite.
std::string short_number(double value);

/// "1h02m", "3m05s", "42s"; "-" when it is negative or not finite.
std::string short_time(double seconds);

}  // namespace sortie
