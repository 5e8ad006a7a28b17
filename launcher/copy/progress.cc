#include "launcher/copy/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "common/base/print_stderr.h"
#include "common/base/quantity.h"
#include "launcher/console/output_options.h"

namespace sortie::launcher {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kQuietOnTerminal{1000}, kQuietElsewhere{2000};
constexpr milliseconds kOnTerminal{200}, kElsewhere{10000};
constexpr milliseconds kRateWindow{10000}, kRateStep{200};

bool is_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(2) == 1 && term && std::string_view(term) != "dumb";
}

std::size_t terminal_width() {
  winsize size{};
  return ::ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
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

void TransferRate::add(Clock::time_point now, std::uint64_t done) {
  if (!seen_.empty() && done < seen_.back().second) seen_.clear();
  // The last sample is replaced; the samples before it are at least a step apart.
  if (seen_.size() >= 2 && seen_.back().first - seen_[seen_.size() - 2].first < kRateStep)
    seen_.pop_back();
  seen_.emplace_back(now, done);
  while (seen_.size() > 2 && now - seen_[1].first >= kRateWindow) seen_.pop_front();
}

double TransferRate::per_second() const {
  if (seen_.size() < 2) return 0;
  const double seconds =
      std::chrono::duration<double>(seen_.back().first - seen_.front().first).count();
  return seconds <= 0 ? 0
                      : static_cast<double>(seen_.back().second - seen_.front().second) / seconds;
}

std::string progress_text(const std::string& what, std::uint64_t done, std::uint64_t total,
                          double per_second, const std::string& unit) {
  const auto amount = [&](std::uint64_t count) {
    return unit.empty() ? byte_count(count) : std::to_string(count);
  };
  std::string text = fmt::format("{}: {}", what, amount(done));
  if (total > 0) text += " of " + amount(total);
  if (!unit.empty()) text += " " + unit;
  if (total > 0)
    text +=
        fmt::format(", {:.0f} %", 100.0 * static_cast<double>(done) / static_cast<double>(total));
  if (per_second <= 0 || (unit.empty() && per_second < 1)) return text;
  if (unit.empty())
    text += fmt::format(", {}/s", byte_count(static_cast<std::uint64_t>(per_second)));
  if (total > done)
    text += fmt::format(", ETA {}", short_time(static_cast<double>(total - done) / per_second));
  return text;
}

std::optional<std::string> ProgressPace::text(const Progress& progress) {
  const auto now = Clock::now();
  if (progress.what != phase_) {
    phase_ = progress.what;
    rate_ = TransferRate();
  }
  rate_.add(now, progress.done);
  if (now - begun_ < (terminal_ ? kQuietOnTerminal : kQuietElsewhere)) return std::nullopt;
  if (any_ && now - shown_ < (terminal_ ? kOnTerminal : kElsewhere)) return std::nullopt;
  any_ = true;
  shown_ = now;
  return progress_text(progress.what, progress.done, progress.total, rate_.per_second(),
                       progress.unit);
}

ProgressLine::ProgressLine()
    : terminal_(is_terminal()), quiet_(output_options().quiet), pace_(terminal_) {}

void ProgressLine::show(const Progress& progress) {
  if (quiet_) return;
  const std::optional<std::string> text = pace_.text(progress);
  if (!text) return;
  if (terminal_)
    print_stderr("\r\x1b[K{}", text->substr(0, terminal_width() - 1));
  else
    print_stderr("{}\n", *text);
  std::fflush(stderr);
  visible_ = terminal_;
}

void ProgressLine::clear() {
  if (!visible_) return;
  print_stderr("\r\x1b[K");
  std::fflush(stderr);
  visible_ = false;
}

}  // namespace sortie::launcher
