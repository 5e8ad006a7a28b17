// The attempt's planned end: all ranks stop after a commit, and the run goes on with other hosts.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "common/base/exit_code.h"
#include "launcher/supervise/attempt.h"

namespace sortie::launcher {

bool Attempt::end_for_restart(const std::string& why) {
  if (starting_ || stopping_ || failing() || over_ || ended_ || superseded()) return false;
  const bool first = planned_.empty();
  planned_ += first ? why : "; " + why;
  parts_.folder.event(JournalEvent::planned, {{"reason", why}});
  parts_.console.message(fmt::format("{}: after the next commit the ranks start again", why));
  if (first) await_commit();
  return true;
}

/// Only sortie-train is known to save when it is asked to end, and only with a folder for it.
void Attempt::await_commit() {
  if (!job_.runner.program.empty() || job_.trainer.save_dir.empty()) return;
  commit_timer_.expires_after(job_.recovery.commit_wait);
  commit_timer_.async_wait([this](boost::system::error_code cancelled) {
    if (!cancelled) end_as_planned();
  });
}

/// Not in the middle of a message: who tells of a commit goes on afterwards. A training whose ranks
/// begin to end by themselves is let go to its end.
void Attempt::end_as_planned() {
  commit_timer_.expires_after(std::chrono::milliseconds(0));
  commit_timer_.async_wait([this](boost::system::error_code cancelled) {
    const bool ending =
        std::ranges::any_of(ranks_, [](const Rank& rank) { return rank.status.has_value(); });
    if (cancelled || ending || stopping_ || failing() || ended_) return;
    Cause cause;
    cause.what = Cause::What::planned;
    cause.exit_code = kExitPreempted;
    cause.message = "planned restart: " + planned_;
    cause.shown = true;
    blame(std::move(cause));
  });
}

}  // namespace sortie::launcher
