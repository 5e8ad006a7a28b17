#include "runner/mpi/finalize_check.h"

#include <utility>

namespace sortie::runner {
namespace {
/// The report of a rank's end waits for the answer, so a sortie-pmix that hangs must not delay it
/// for long. Counts from the last answer or, if none is awaited, from the question: further
/// questions do not extend it.
constexpr std::chrono::seconds kAnswerLimit{2};
}  // namespace

void FinalizeCheck::ask(PmixHelper& helper, std::uint32_t rank) {
  if (!open_.insert(rank).second) return;
  if (open_.size() == 1) await_answer();
  helper.send(wire::PmixExited{rank});
}

void FinalizeCheck::take(const wire::PmixExited& answer) {
  if (open_.erase(answer.rank) == 0) return;
  if (open_.empty())
    limit_.cancel();
  else
    await_answer();
  answer_(answer.rank, answer.not_finalized != 0);
}

void FinalizeCheck::await_answer() {
  limit_.set(kAnswerLimit, [this] { give_up(); });
}

void FinalizeCheck::give_up() {
  limit_.cancel();
  for (const std::uint32_t rank : std::exchange(open_, {})) answer_(rank, false);
}

}  // namespace sortie::runner
