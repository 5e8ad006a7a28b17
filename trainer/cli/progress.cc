#include "trainer/cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "trainer/cli/output_options.h"
#include "trainer/cli/report.h"

namespace sortie::trainer {
namespace {

std::string amount(double value, std::string_view unit) {
  if (unit.empty()) return human_bytes(static_cast<std::uint64_t>(value));
  return fmt::format("{:.{}f}", value, value < 10 && value != std::floor(value) ? 1 : 0);
}

/// "0:05", "2:03:04".
std::string clock_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::min(std::ceil(seconds), 1e9));
  const std::int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{}:{:02}", minutes, whole % 60);
}

}  // namespace

void ProgressMeter::update(const WorkProgress& work, double seconds) {
  const bool next_piece = work.total != work_.total && work.done < last_done_;
  if (work.stage != work_.stage || next_piece) {
    begin_ = last_ = seconds;
    last_done_ = work.done;
    rate_ = 0.0;
  }
  work_ = work;
  constexpr double kWindow = 5.0;  // seconds; older values have little weight
  const double passed = seconds - last_;
  if (passed < 0.2 || work.done < last_done_) return;
  const double now = static_cast<double>(work.done - last_done_) / passed;
  // At first the mean since the beginning, later a mean over the window.
  const double weight = std::max(1.0 - std::exp(-passed / kWindow), passed / (seconds - begin_));
  rate_ += weight * (now - rate_);
  last_ = seconds;
  last_done_ = work.done;
}

std::string ProgressMeter::text(double seconds) const {
  const auto done = static_cast<double>(work_.done);
  const auto total = static_cast<double>(work_.total);
  std::string line(work_.stage);
  if (work_.total == 0) {
    line += fmt::format("  {} so far", clock_text(seconds - begin_));
    if (work_.done > 0) line += fmt::format("  {}", amount(done, work_.unit));
  } else {
    line += fmt::format("  {:.0f} %  {} of {}", std::min(100.0 * done / total, 100.0),
                        amount(done, work_.unit), amount(total, work_.unit));
  }
  if (!work_.unit.empty() && (work_.done > 0 || work_.total > 0))
    line += fmt::format(" {}", work_.unit);
  if (rate_ <= 0.0) return line;
  line += fmt::format("  {}/s", amount(rate_, work_.unit));
  // The time since the last report is subtracted from the remaining time.
  if (work_.total > 0)
    line += fmt::format("  ETA {}",
                        clock_text(std::max((total - done) / rate_ - (seconds - last_), 0.0)));
  return line;
}

ProgressLine::ProgressLine(std::string verb, std::FILE* out)
    : verb_(std::move(verb)), out_(out), terminal_(::isatty(::fileno(out)) == 1) {
  if (!output_options().quiet) thread_ = std::jthread([this] { run(); });
}

double ProgressLine::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

void ProgressLine::update(const WorkProgress& work) {
  const std::lock_guard lock(mutex_);
  any_ = true;
  meter_.update(work, seconds());
}

void ProgressLine::run() {
  using namespace std::chrono_literals;
  std::unique_lock lock(mutex_);
  // Work of less than two seconds shows nothing.
  for (std::chrono::milliseconds pause = 2s;
       !changed_.wait_for(lock, pause, [&] { return finished_; });
       pause = terminal_ ? 200ms : 10s) {
    if (!any_) continue;
    const std::string text = meter_.text(seconds());
    if (terminal_)
      fmt::print(out_, "\r{}\x1b[K", text);
    else
      fmt::print(out_, "{}: {}\n", verb_, text);
    std::fflush(out_);
    line_open_ = terminal_;
  }
}

void ProgressLine::finish() {
  {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    finished_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (line_open_) fmt::print(out_, "\r\x1b[K");
  std::fflush(out_);
}

}  // namespace sortie::trainer
