// Checkpointer: going back to an earlier checkpoint within a run.
//
// The order of the steps makes a kill harmless: the state is read; the rollback is written to
// rollbacks.json; checkpoints of later steps are removed. If the file is not on disk yet, the
// restarted run reaches the same step again and does the same. Once it is, no later start uses what
// was abandoned.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ranges>

#include "common/base/log.h"
#include "trainer/state/checkpoint_state.h"
#include "trainer/state/checkpointer.h"
#include "trainer/state/rank_texts.h"

namespace sortie::trainer {
namespace fs = std::filesystem;

/// Rank 0: finds the checkpoint to go back to, and verifies its bytes.
///
/// After a rollback there may be none that is old enough for the next one: trainer.keep_last has
/// removed those before its target. An error would end every later start at the same step, so the
/// oldest one is taken, unless the samples are repeated: then the cause is in newer checkpoints.
Result<CheckpointEntry> Checkpointer::find_target(const RollbackOrder& order) const {
  SORTIE_ASSIGN_OR_RETURN(std::vector<CheckpointEntry> entries,
                          list_checkpoints(job_.trainer.save_dir, CheckDepth::sizes));
  const RollbackFile known{start_.lineage, rollbacks_};
  std::vector<std::string> passed_over;
  const auto usable = [&](const CheckpointEntry& entry) {
    if (!entry.manifest) return false;
    const Manifest& manifest = *entry.manifest;
    if (manifest.lineage != start_.lineage || is_abandoned(manifest, known)) return false;
    // Checkpoints that a signal or a failure caused may exist in one execution of a run and not in
    // another; the skipped samples must not depend on them.
    if (order.next_sample && entry.step % job_.trainer.save_interval != 0) return false;
    if (manifest.suspect) {
      passed_over.push_back(fmt::format("{} is suspect", entry.folder.filename().string()));
      return false;
    }
    auto checked = check_checkpoint(entry.folder, CheckDepth::hashes);
    if (!checked) passed_over.push_back(std::move(checked).error().message);
    return checked.has_value();
  };
  for (CheckpointEntry& entry : entries)  // newest first
    if (entry.step <= order.newest && usable(entry)) return std::move(entry);
  if (order.next_sample)
    for (CheckpointEntry& entry : std::views::reverse(entries)) {
      if (entry.step <= order.newest || entry.step >= order.from || !usable(entry)) continue;
      log::warning(
          "step {}: there is no checkpoint of step {} or earlier, so the run goes back to step {}; "
          "a larger trainer.keep_last keeps older ones",
          order.from, order.newest, entry.step);
      return std::move(entry);
    }
  return fail(
      ErrorCode::diverged,
      fmt::format(
          "step {}: {}; there is no checkpoint of step {} or earlier in {} to go back to{}{}; {}",
          order.from, order.reason, order.next_sample ? order.from - 1 : order.newest,
          job_.trainer.save_dir, passed_over.empty() ? "" : ": ", fmt::join(passed_over, "; "),
          order.next_sample ? "use the policy \"skip\" to get past this step, or save more often "
                              "(trainer.save_interval)"
                            : "a larger trainer.keep_last keeps older ones"));
}

/// Rank 0: plans the rollback; sets `rollbacks` to all rollbacks including this one.
Result<Checkpointer::RolledBack> Checkpointer::plan_rollback(const RollbackOrder& order,
                                                             std::vector<Rollback>& rollbacks) {
  SORTIE_ASSIGN_OR_RETURN(const CheckpointEntry target, find_target(order));
  RolledBack back;
  back.path = target.folder;
  back.progress = recorded_progress(*target.manifest);
  back.rollback = {order.from, target.step, 0, order.reason};
  if (order.next_sample)
    back.rollback.skipped = *order.next_sample - back.progress.consumed_samples -
                            skipped_before(skipped_by(rollbacks_), target.step);
  rollbacks = rollbacks_;
  rollbacks.push_back(back.rollback);
  const std::int64_t limit = job_.trainer.max_consecutive_skips;
  if (const std::int64_t row = rollbacks_in_a_row(rollbacks); row > limit)
    return fail(ErrorCode::diverged,
                fmt::format("step {}: {}; the run has gone back {} times in a row without getting "
                            "past this step, which trainer.max_consecutive_skips = {} does not "
                            "allow; lower learning_rate_scheduler.learning_rate, or look at the "
                            "data and the hosts",
                            order.from, order.reason, row - 1, limit));
  return back;
}

Result<Checkpointer::RolledBack> Checkpointer::roll_back(const RollbackOrder& order) {
  SORTIE_CHECK(!flight_, "a save is under way");
  RolledBack back;
  std::vector<Rollback> rollbacks;
  Result<> outcome;
  if (communicator_.rank() == 0) {
    if (auto planned = plan_rollback(order, rollbacks))
      back = std::move(*planned);
    else
      outcome = std::unexpected(std::move(planned).error());
  }
  SORTIE_TRY(share_outcome(communicator_, outcome));
  static_assert(std::is_trivially_copyable_v<TrainingProgress>);
  communicator_.broadcast(std::as_writable_bytes(std::span(&back.progress, 1)), 0);
  const std::string mine = pack({back.path.string(), to_json_text(rollbacks)});
  const auto told = unpack(communicator_.all_gather(mine)[0]);
  // The checkpoints in memory belong to the abandoned course.
  if (memory_) SORTIE_TRY(share_failure_of_any(communicator_, memory_->discard()));
  SORTIE_TRY(load_state(*told[0], /*weights_alone=*/false));

  if (communicator_.rank() == 0)
    outcome = write_rollbacks(job_.trainer.save_dir, {start_.lineage, rollbacks});
  SORTIE_TRY(share_outcome(communicator_, outcome));
  SORTIE_ASSIGN_OR_RETURN(rollbacks_, parse_rollbacks(*told[1], "rollbacks of rank 0"));
  back.rollback = rollbacks_.back();
  if (communicator_.rank() == 0) {
    notes_from_ = back.path;
    // Checkpoints that cannot be removed now are abandoned: no start uses them.
    if (auto removed = folder_->discard_after(back.rollback.to); !removed)
      log::warning("{}", removed.error().message);
    if (auto best = settle_best(back.progress.best))
      back.progress.best = *best;
    else
      outcome = std::unexpected(std::move(best).error());
  }
  SORTIE_TRY(share_outcome(communicator_, outcome));
  communicator_.broadcast(std::as_writable_bytes(std::span(&back.progress.best, 1)), 0);
  return back;
}

}  // namespace sortie::trainer
