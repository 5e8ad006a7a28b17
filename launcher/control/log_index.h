// What a person says about which part of the logs to show, and logs/times read back.
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

/// "0,8-15"; a rank at or above `world_size` is an error.
Result<std::set<std::uint32_t>> parse_ranks(std::string_view text, std::uint32_t world_size);

/// "10m", "1h", "7d".
Result<std::int64_t> parse_age_ms(std::string_view text);

/// An age, "14:30[:05]" of the last 24 hours, or "2026-11-21 14:30[:05]" (local time), as
/// milliseconds since 1970. `now_ms` likewise.
Result<std::int64_t> parse_since(const std::string& text, std::int64_t now_ms);

/// A stretch of one log that came at `time_ms` or a little later. Where the clock was set back, the
/// time stands still until the clock is there again.
struct LogPiece {
  std::int64_t time_ms = 0;  // since 1970
  StreamKey stream;
  std::uint64_t begin = 0, end = 0;
};

/// The first `sizes[stream]` bytes of each of these logs of an attempt (attempt_folder.h), in the
/// order in which they came (to a second); with `since_ms`, what came then or later, and where a
/// clock was set back rather more than that than less.
std::vector<LogPiece> pieces_in_time(const std::filesystem::path& folder,
                                     const std::map<StreamKey, std::uint64_t>& sizes,
                                     std::optional<std::int64_t> since_ms);

}  // namespace sortie::launcher
