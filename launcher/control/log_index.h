// Parses the user's selection of logs (ranks, times), and reads logs/times.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/wire/message.h"

namespace sortie::launcher {

using StreamKey = std::pair<std::uint32_t, wire::Stream>;

/// Parses "0,8-15". Fails for a rank >= `world_size`.
Result<std::set<std::uint32_t>> parse_ranks(std::string_view text, std::uint32_t world_size);

/// Parses "10m", "1h" or "7d".
Result<std::int64_t> parse_age_ms(std::string_view text);

/// Parses an age, "14:30[:05]" (within the last 24 hours) or "2026-11-21 14:30[:05]" (local time).
/// Returns milliseconds since 1970; `now_ms` has the same unit.
Result<std::int64_t> parse_since(const std::string& text, std::int64_t now_ms);

/// A part of one log that was written at `time_ms` or slightly later. If the clock is set back,
/// `time_ms` stays constant until the clock reaches it again.
struct LogPiece {
  std::int64_t time_ms = 0;  // since 1970
  StreamKey stream;
  std::uint64_t begin = 0, end = 0;
};

/// Returns the first `sizes[stream]` bytes of each log of an attempt (attempt_folder.h) in pieces,
/// in the order in which they arrived (resolution: one second). With `since_ms`: only pieces since
/// then; if a clock was set back, rather more than less.
std::vector<LogPiece> pieces_in_time(const std::filesystem::path& folder,
                                     const std::map<StreamKey, std::uint64_t>& sizes,
                                     std::optional<std::int64_t> since_ms);

}  // namespace sortie::launcher
