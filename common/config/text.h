// Values as text and back: TOML strings and numbers, durations, and the nearest of some names.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::config {

/// As a TOML basic string. Bytes that are no UTF-8 become U+FFFD: TOML can not hold them.
std::string quote(std::string_view text);

/// The shortest TOML float that reads back as the same value.
std::string number_text(double value);

/// "30s", "500ms", "2m", "1h", "1.5s"; exact in milliseconds. The error is "why; what to do".
Result<std::chrono::milliseconds> parse_duration(std::string_view text);

/// In the largest unit that holds it exactly.
std::string duration_text(std::chrono::milliseconds value);

/// Without blanks, tabs and carriage returns at its ends.
std::string_view trim(std::string_view text);

/// At most 60 bytes, cut at a UTF-8 border, "..." for the rest.
std::string shorten(std::string_view text);

/// The candidate with the smallest edit distance (a swap counts once), empty when none is near.
std::string_view nearest(std::string_view name, const std::vector<std::string_view>& candidates);

/// Edit distance with insertions, deletions, replacements and swaps of neighbours.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The multiples of `unit` on both sides of `value`, as "4 or 8"; the one above alone where the
/// other is 0. For positive numbers.
std::string nearest_multiples(std::int64_t value, std::int64_t unit);

}  // namespace sortie::config
