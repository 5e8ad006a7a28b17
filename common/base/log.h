// Diagnostics of a Sortie program itself (not the output of ranks): lines on stderr, filtered by
// level. Only log.cc includes spdlog.
#pragma once

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace sortie::log {

enum class Level { debug, info, warning, error };

/// The level for a value of logger.log_level: "debug", "info", "warning" or "error".
Level level_named(std::string_view name);

/// Call at program start, and again once the config has set the level. `program` prefixes every
/// line. Not safe concurrently with writes.
void init(std::string_view program, Level level);
bool enabled(Level level);
/// Writes printable_lines(text), because a line may contain text from a host.
void write(Level level, std::string_view text);

template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::debug)) write(Level::debug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::info)) write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::error, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace sortie::log
