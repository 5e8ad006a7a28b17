// Conversion of values to text and back: TOML strings and numbers, durations; and the nearest name.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::config {

/// `text` as a TOML basic string. Control characters and hidden ones (printable.h) are escapes.
/// Invalid UTF-8 becomes U+FFFD, because TOML does not allow it.
std::string quote(std::string_view text);

/// The shortest TOML float that reads back as the same value.
std::string number_text(double value);

/// Parses "30s", "500ms", "2m", "1h", "1.5s"; exact in milliseconds. An error is "why; what to do".
Result<std::chrono::milliseconds> parse_duration(std::string_view text);

/// The duration in the largest unit that represents it exactly.
std::string duration_text(std::chrono::milliseconds value);

/// Removes blanks, tabs and carriage returns from both ends.
std::string_view trim(std::string_view text);

/// At most 60 bytes, cut between UTF-8 characters; "..." replaces the rest.
std::string shorten(std::string_view text);

/// The candidate with the smallest edit distance (a swap counts once); empty if none is near.
std::string_view nearest(std::string_view name, const std::vector<std::string_view>& candidates);

/// Edit distance with insertions, deletions, replacements and swaps of adjacent characters.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The multiples of `unit` below (or at) and above `value`, as "4 or 8"; only the upper one if the
/// lower one is 0. For positive numbers.
std::string nearest_multiples(std::int64_t value, std::int64_t unit);

}  // namespace sortie::config
