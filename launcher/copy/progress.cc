#include "launcher/copy/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace sortie::launcher {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kQuiet{1000};
constexpr milliseconds kOnTerminal{200};
constexpr milliseconds kElsewhere{10000};

bool is_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(2) == 1 && term && std::string_view(term) != "dumb";
}

}  // namespace

std::string byte_count(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

ProgressLine::ProgressLine() : terminal_(is_terminal()) {}

void ProgressLine::show(const std::string& what, std::uint64_t done, std::uint64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (now - begun_ < kQuiet || now - shown_ < (terminal_ ? kOnTerminal : kElsewhere)) return;
  shown_ = now;
  const double seconds = std::chrono::duration<double>(now - begun_).count();
  std::string text = fmt::format("{}: {}", what, byte_count(done));
  if (total > 0)
    text += fmt::format(" of {}, {:.0f} %", byte_count(total),
                        100.0 * static_cast<double>(done) / static_cast<double>(total));
  text += fmt::format(", {}/s",
                      byte_count(static_cast<std::uint64_t>(static_cast<double>(done) / seconds)));
  if (terminal_)
    fmt::print(stderr, "\r\x1b[K{}", text.substr(0, 78));
  else
    fmt::print(stderr, "{}\n", text);
  std::fflush(stderr);
  visible_ = terminal_;
}

void ProgressLine::clear() {
  if (!visible_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  visible_ = false;
}

}  // namespace sortie::launcher
