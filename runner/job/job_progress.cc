// The part of Job that tracks the progress of ranks and collects stacks of ranks that hang.
#include <algorithm>

#include "common/base/log.h"
#include "runner/job/job.h"
#include "runner/progress/stacks.h"

namespace sortie::runner {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kStackPoll{50};
/// Part of an order's timeout that is reserved for the answers' way to the launcher.
constexpr std::uint32_t kWayMs = 500;

}  // namespace

/// Returns whether the line was a progress line; these are not passed to the launcher as events.
bool Job::take_progress(const Rank& rank, const std::string& line) {
  ProgressLine progress;
  switch (read_progress_line(line, progress)) {
    case LineKind::event:
      return false;
    case LineKind::progress:
      progress_.take(rank.spec->rank, progress, Clock::now());
      return true;
    case LineKind::broken:
      if (!std::exchange(progress_refused_, true))
        log::warning(
            "rank {}: a line of type progress on SORTIE_SOCKET without a step, or with members of "
            "other types, is left out, and others like it",
            rank.spec->rank);
      return true;
  }
  return false;
}

void Job::fill(wire::Heartbeat& beat, Clock::duration gap) {
  const auto now = Clock::now();
  if (gap > Clock::duration::zero()) progress_.skip(gap, now);
  beat.ranks = progress_.report(now);
  if (const auto step = committed_.step()) beat.committed_step = *step + 1;
  if (!started_ || finished_) return;
  // It is reaped like the keepers, and the sweep of orphans does not kill it.
  if (const pid_t reader = committed_.look(); reader > 0) keepers_.insert(reader);
}

boost::asio::awaitable<void> Job::dump_stacks(wire::DumpStacks order) {
  const auto deadline =
      Clock::now() + milliseconds(order.timeout_ms - std::min(order.timeout_ms / 2, kWayMs));
  std::ranges::sort(order.ranks);
  const auto repeated = std::ranges::unique(order.ranks);
  order.ranks.erase(repeated.begin(), repeated.end());
  std::vector<StackDumper> dumpers;
  for (const auto& rank : ranks_)
    if (std::ranges::binary_search(order.ranks, rank->spec->rank))
      dumpers.emplace_back(rank->spec->rank, rank->gone ? 0 : rank->pid, rank->socket_path);
  boost::asio::steady_timer pause(io_);
  const auto open = [&] {
    const auto now = Clock::now();
    return now < deadline && std::ranges::any_of(dumpers, [now](StackDumper& dumper) {
             return !dumper.complete(now);
           });
  };
  while (open()) {
    pause.expires_after(kStackPoll);
    co_await pause.async_wait(kToken);
  }
  for (StackDumper& dumper : dumpers) link_.send(dumper.take());
}

}  // namespace sortie::runner
