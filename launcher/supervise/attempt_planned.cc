// Attempt: the planned end. All ranks stop after a commit, and the run continues on other hosts.
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

/// Starts the timeout recovery.commit_wait. Only sortie-train with a save_dir is known to save on
/// SIGTERM, so other programs get no timeout.
void Attempt::await_commit() {
  if (!job_.runner.program.empty() || job_.trainer.save_dir.empty()) return;
  commit_timer_.set(job_.recovery.commit_wait, [this] { end_as_planned(); });
}

/// Stops the ranks as planned. Deferred by a timer, because the caller is still handling the
/// message that reports the commit. If ranks have begun to exit by themselves the training is left
/// to finish.
void Attempt::end_as_planned() {
  commit_timer_.set(std::chrono::milliseconds(0), [this] {
    const bool ending =
        std::ranges::any_of(ranks_, [](const Rank& rank) { return rank.status.has_value(); });
    if (ending || stopping_ || failing() || ended_) return;
    Cause cause;
    cause.what = Cause::What::planned;
    cause.exit_code = kExitPreempted;
    cause.message = "planned restart: " + planned_;
    cause.shown = true;
    blame(std::move(cause));
  });
}

}  // namespace sortie::launcher
