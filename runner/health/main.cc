// sortie-health: watches the health of one host while a job runs there. The runner starts it from
// its embedded bytes. It writes one line of JSON per finding to stdout and changes nothing on the
// host.
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <optional>
#include <span>
#include <utility>

#include "common/base/boot_clock.h"
#include "common/base/exit_code.h"
#include "runner/health/gpu_watch.h"
#include "runner/health/host_watch.h"
#include "runner/health/inbox.h"
#include "runner/health/kernel_log.h"
#include "runner/health/links.h"
#include "runner/health/options.h"
#include "runner/health/reporter.h"

namespace sortie::runner::health {
namespace {

/// Time for NVML to answer before the sources are reported; in seconds, and in ticks if these are
/// short.
constexpr double kStateSeconds = 10, kStateTicks = 200;

/// Both clocks at one time; nullopt if this process was descheduled in between, which would look
/// like a step.
std::optional<std::pair<double, double>> clocks() {
  const std::int64_t before = boot_ms();
  timespec wall{};
  ::clock_gettime(CLOCK_REALTIME, &wall);
  if (boot_ms() - before > 50) return std::nullopt;
  return std::pair(static_cast<double>(wall.tv_sec) + static_cast<double>(wall.tv_nsec) / 1e9,
                   static_cast<double>(before) / 1000);
}

class Watch {
 public:
  explicit Watch(const Options& options)
      : options_(options),
        kernel_(KernelLog::open(options.kernel_log)),
        links_(options.root),
        memory_(options.root),
        gpus_(options.nvml, 2 * options.tick, inbox_),
        rooms_(options.folders, options.floor, 6 * options.tick, inbox_),
        reporter_(STDOUT_FILENO),
        begun_(steady_seconds()) {}

  int run() {
    double next = 0;
    while (!reporter_.closed()) {
      double now = steady_seconds();
      if (now >= next) {
        look(now);
        next = now + std::chrono::duration<double>(options_.tick).count();
      }
      tell_sources(now);
      reporter_.tick(now);
      wait(std::min(next, reporter_.due().value_or(next)));
      take();
    }
    return kExitOk;
  }

 private:
  void say(Finding finding) {
    inbox_.add_gpu_names(finding);
    reporter_.say(finding, steady_seconds());
  }

  void look(double now) {
    for (Finding& finding : links_.look(now)) say(std::move(finding));
    if (const auto times = clocks())
      if (auto step = clock_.look(times->first, times->second)) say(std::move(*step));
    // The kernel log reports OOM kills with the name of the process.
    if (!kernel_)
      if (auto kill = memory_.look()) say(std::move(*kill));
    if (auto silence = gpus_.silence(now)) say(std::move(*silence));
    if (auto silence = rooms_.silence(now)) say(std::move(*silence));
  }

  /// Reports the sources once: the reader of a run's journal must know what was not watched.
  void tell_sources(double now) {
    if (sources_told_) return;
    std::string gpus = gpus_.state();
    if (gpus.empty() && now - begun_ < std::min(kStateSeconds, kStateTicks * tick_seconds()))
      return;
    if (gpus.empty()) gpus = "NVML does not answer yet";
    sources_told_ = true;
    Finding finding{.kind = Kind::sources};
    finding.text = fmt::format("{}; {}; links: {}",
                               kernel_ ? "kernel log" : "no kernel log: " + kernel_.error().message,
                               gpus, fmt::join(links_.names(), " "));
    say(std::move(finding));
  }

  double tick_seconds() const { return std::chrono::duration<double>(options_.tick).count(); }

  void wait(double until) {
    if (!sources_told_) until = std::min(until, steady_seconds() + 0.1);
    const double left = std::clamp(until - steady_seconds(), 0.0, 3600.0);
    pollfd fds[] = {{inbox_.fd(), POLLIN, 0}, {STDOUT_FILENO, 0, 0}, {-1, POLLIN, 0}};
    if (kernel_) fds[2].fd = kernel_->fd();
    if (::poll(fds, 3, static_cast<int>(left * 1000) + 1) > 0 && (fds[1].revents & POLLERR))
      reader_gone_ = true;
  }

  void take() {
    if (reader_gone_) ::_exit(kExitOk);
    std::vector<Finding> findings = inbox_.take();
    if (kernel_ && !kernel_->read(findings))
      kernel_ = std::unexpected(Error{ErrorCode::io, "the kernel log has ended"});
    for (Finding& finding : findings) say(std::move(finding));
  }

  const Options& options_;
  Inbox inbox_;
  Result<KernelLog> kernel_;
  Links links_;
  ClockWatch clock_;
  MemoryWatch memory_;
  GpuWatch gpus_;
  RoomWatch rooms_;
  Reporter reporter_;
  const double begun_;
  bool sources_told_ = false, reader_gone_ = false;
};

int run(std::span<char* const> words) {
  const auto options = parse_options(words);
  if (!options) {
    fmt::print(stderr, "sortie-health: {}\n", options.error().message);
    return kExitUsage;
  }
  ::prctl(PR_SET_NAME, "sortie-health");
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGPIPE, SIG_IGN);
  // Not on the stack: threads use it until the process ends, which runs no destructors.
  auto* watch = new Watch(*options);
  return watch->run();
}

}  // namespace
}  // namespace sortie::runner::health

int main(int argc, char** argv) {
  const int code = sortie::runner::health::run({argv, static_cast<std::size_t>(argc)});
  std::fflush(nullptr);
  ::_exit(code);  // threads may block in a driver
}
