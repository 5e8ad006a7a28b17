// Diagnostics of a Sortie program itself (not ranks' output): level-filtered lines on stderr.
// spdlog stays behind this header.
#pragma once

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace sortie::log {

enum class Level { debug, info, warning, error };

/// "debug", "info", "warning" or "error", the words of logger.log_level.
Level level_named(std::string_view name);

/// Call at start, and again when the config has the level; `program` prefixes every line. Not
/// thread-safe against concurrent writes.
void init(std::string_view program, Level level);
bool enabled(Level level);
/// Control bytes become visible (^X): a line may hold what a host said.
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
