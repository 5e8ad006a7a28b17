#include "launcher/control/log_index.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <fstream>
#include <sstream>

#include "common/config/text.h"

namespace sortie::launcher {
namespace {

constexpr std::int64_t kDayMs = 24 * 3600 * 1000;
/// logs/times has one line per second: output written within that second may precede the next line.
constexpr std::int64_t kMarkMs = 1000;

std::optional<std::uint32_t> whole_number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

Result<std::set<std::uint32_t>> parse_ranks(std::string_view text, std::uint32_t world_size) {
  std::set<std::uint32_t> ranks;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const std::string_view item = text.substr(begin, comma - begin);
    const std::size_t dash = item.find('-');
    const auto first = whole_number(item.substr(0, dash));
    const auto last = dash == item.npos ? first : whole_number(item.substr(dash + 1));
    if (!first || !last || *first > *last)
      return fail(
          ErrorCode::usage,
          fmt::format("--rank {}: \"{}\" is no rank and no range; write 0,8-15", text, item));
    if (*last >= world_size)
      return fail(ErrorCode::usage, fmt::format("--rank {}: this run has the ranks 0 to {}", text,
                                                world_size == 0 ? 0 : world_size - 1));
    for (std::uint32_t rank = *first; rank <= *last; ++rank) ranks.insert(rank);
    begin = comma + 1;
  }
  return ranks;
}

Result<std::int64_t> parse_age_ms(std::string_view text) {
  if (text.ends_with('d'))
    if (const auto days = whole_number(text.substr(0, text.size() - 1)); days && *days < 100000)
      return *days * kDayMs;
  if (const auto age = config::parse_duration(text)) return age->count();
  return fail(ErrorCode::usage, fmt::format("{}: is no time span; write 90s, 10m, 2h or 7d", text));
}

Result<std::int64_t> parse_since(const std::string& text, std::int64_t now_ms) {
  if (const auto age = parse_age_ms(text)) return now_ms - *age;
  const auto now = static_cast<std::time_t>(now_ms / 1000);
  for (const char* format : {"%H:%M:%S", "%H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M",
                             "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d"}) {
    std::tm when{};
    ::localtime_r(&now, &when);
    when.tm_sec = 0;
    const bool time_only = format[1] == 'H';
    if (!time_only) when.tm_hour = when.tm_min = 0;
    const char* rest = ::strptime(text.c_str(), format, &when);
    if (!rest || *rest != '\0') continue;
    when.tm_isdst = -1;
    std::int64_t at = static_cast<std::int64_t>(std::mktime(&when)) * 1000;
    if (time_only && at > now_ms) at -= kDayMs;
    return at;
  }
  return fail(
      ErrorCode::usage,
      fmt::format("--since {}: is no time; write 10m, 14:30 or \"2026-11-21 14:30\"", text));
}

std::vector<LogPiece> pieces_in_time(const std::filesystem::path& folder,
                                     const std::map<StreamKey, std::uint64_t>& sizes,
                                     std::optional<std::int64_t> since_ms) {
  struct Mark {
    std::int64_t time_ms;
    std::uint64_t offset;
    std::size_t line;  // in logs/times
  };
  std::map<StreamKey, std::vector<Mark>> marks;
  std::ifstream times(folder / "logs/times");
  // Lines are in order of arrival. If the clock was set back, a line gets the latest time
  // before it.
  std::int64_t latest_ms = 0;
  std::size_t lines = 0;
  for (std::string line; std::getline(times, line);) {
    std::istringstream words(line);
    std::int64_t time_ms = 0;
    std::uint32_t rank = 0;
    std::string stream;
    std::uint64_t offset = 0;
    if (!(words >> time_ms >> rank >> stream >> offset)) continue;
    const StreamKey key{rank, stream == "err" ? wire::Stream::err : wire::Stream::out};
    latest_ms = std::max(latest_ms, time_ms);
    if (sizes.contains(key)) marks[key].push_back({latest_ms, offset, ++lines});
  }
  std::vector<std::pair<std::size_t, LogPiece>> pieces;
  for (const auto& [key, size] : sizes) {
    std::vector<Mark>& mine = marks[key];
    // Output before the first mark (for example after a full disk) counts as old as the run.
    if (mine.empty() || mine.front().offset > 0) mine.insert(mine.begin(), {0, 0, 0});
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const std::uint64_t end = i + 1 < mine.size() ? std::min(mine[i + 1].offset, size) : size;
      if (mine[i].offset >= end || (since_ms && mine[i].time_ms < *since_ms - kMarkMs)) continue;
      pieces.push_back({mine[i].line, {mine[i].time_ms, key, mine[i].offset, end}});
    }
  }
  std::ranges::stable_sort(pieces, {}, &std::pair<std::size_t, LogPiece>::first);
  std::vector<LogPiece> sorted;
  sorted.reserve(pieces.size());
  for (const auto& [line, piece] : pieces) sorted.push_back(piece);
  return sorted;
}

}  // namespace sortie::launcher
