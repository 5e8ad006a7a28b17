#include "common/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "common/base/printable.h"

namespace sortie::log {
namespace {

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warning:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

spdlog::logger& logger() {
  // The sink is thread-safe (_mt), because worker threads of the trainer log too.
  static spdlog::logger instance("sortie", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  return instance;
}

}  // namespace

Level level_named(std::string_view name) {
  if (name == "debug") return Level::debug;
  if (name == "info") return Level::info;
  return name == "warning" ? Level::warning : Level::error;
}

void init(std::string_view program, Level level) {
  logger().set_pattern(fmt::format("{}: %l: %v", program));
  logger().set_level(to_spdlog(level));
}

bool enabled(Level level) {
  return logger().should_log(to_spdlog(level));
}

void write(Level level, std::string_view text) {
  logger().log(to_spdlog(level), printable_lines(text));
}

}  // namespace sortie::log
