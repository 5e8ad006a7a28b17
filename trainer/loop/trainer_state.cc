// How a Trainer saves, and goes back to an earlier step.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "common/base/elapsed.h"
#include "common/config/forms.h"
#include "trainer/loop/replica_check.h"
#include "trainer/loop/trainer.h"

namespace sortie::trainer {

std::optional<BestValidation> Trainer::forget_other_measure() {
  if (measure_ == 0) return std::nullopt;  // none will be compared with it
  const BestValidation was = progress_.best;
  // Older versions recorded no measure: theirs counts as this one.
  const bool other = was.measure != 0 && was.measure != measure_;
  if (other) progress_.best = {};
  progress_.best.measure = measure_;
  return other && std::isfinite(was.loss) ? std::optional(was) : std::nullopt;
}

void Trainer::restore_best(std::int64_t step) {
  if (communicator_.rank() != 0 || progress_.best.step != step) return;
  const auto kept = checkpointer_.kept_best();
  if (!kept) return report_.note(kept.error().message);
  progress_.best = *kept;
  forget_other_measure();
}

/// Reports saves that have ended. A failure of the last save is an error. After another failure the
/// last committed checkpoint still exists, and the disk may have space again at the next save.
Result<> Trainer::report_saves(const std::vector<Checkpointer::Outcome>& outcomes, bool last) {
  for (const Checkpointer::Outcome& outcome : outcomes) {
    const bool best = outcome.series == Checkpointer::Series::best;
    if (!outcome.saved) {
      // If a later attempt of the run continues elsewhere, nothing that is done here counts.
      SORTIE_TRY(checkpointer_.check_not_taken());
      if (best) restore_best(outcome.step);
      if (last && !best) return std::unexpected(outcome.saved.error());
      report_.note(fmt::format("step {}: no checkpoint{}, training continues: {}", outcome.step,
                               best ? " of the lowest validation loss" : "",
                               outcome.saved.error().message));
      continue;
    }
    save_seconds_ = std::max(save_seconds_, outcome.saved->seconds);
    report_.checkpoint(outcome.step, *outcome.saved, best);
    if (!outcome.saved->warning.empty()) report_.note(outcome.saved->warning);
  }
  return {};
}

Result<> Trainer::save(bool last, const std::vector<Checkpointer::Series>& series) {
  if (job_.trainer.save_dir.empty() || series.empty()) return {};
  not_saved_ = outer_ && outer_->lacks_state();
  if (not_saved_) {  // it would be taken for the state of the round that it must copy
    report_.note(
        fmt::format("step {}: no checkpoint: this site is to take the weights of another one first",
                    progress_.step));
    restore_best(progress_.step);
    return {};
  }
  const auto begin = std::chrono::steady_clock::now();
  if (outer_) outer_->show_outer_weights(progress_);
  if (signals_) signals_->expect(last ? save_seconds_ : stall_seconds_.value_or(save_seconds_));
  rank_.marks->enter(training::Section::save);
  SORTIE_TRY(report_saves(checkpointer_.finish(), /*last=*/false));
  if (last) {
    for (const Checkpointer::Series one : series)
      SORTIE_TRY(
          report_saves({{progress_.step, one, checkpointer_.save(progress_, one)}}, /*last=*/true));
  } else {
    checkpointer_.begin_save(progress_, series);
    SORTIE_TRY(report_saves(checkpointer_.take_outcomes(), /*last=*/false));
    stall_seconds_ = std::max(stall_seconds_.value_or(0.0), seconds_since(begin));
  }
  if (outer_) outer_->show_own_weights(progress_);
  return {};
}

/// Takes all ranks back to an earlier step.
Result<> Trainer::roll_back(const Checkpointer::RollbackOrder& order) {
  if (signals_) signals_->expect(save_seconds_);
  SORTIE_TRY(report_saves(checkpointer_.finish(), /*last=*/false));
  whole_ = false;
  if (step_.drop_in_flight()) save_due_ = true;
  SORTIE_ASSIGN_OR_RETURN(const Checkpointer::RolledBack back, checkpointer_.roll_back(order));
  progress_ = back.progress;
  forget_other_measure();
  step_.resume(progress_);
  step_.fp8_histories().loaded(context());
  step_.set_skipped(skipped_by(checkpointer_.rollbacks()));
  store().refresh_compute_copy(context());
  step_.spread_weights();
  store().weights_changed();
  SORTIE_TRY(check_initial_state(layout_, rank_, store()));
  last_equal_ = step_before_ = progress_.step;
  whole_ = true;
  report_.rolled_back(back);
  return {};
}

Result<bool> Trainer::handle_trouble(const StepReport& report) {
  if (report.trouble != StepTrouble::nonfinite && report.trouble != StepTrouble::spike)
    return false;
  const bool spike = report.trouble == StepTrouble::spike;
  const std::string& policy = spike ? job_.trainer.on_loss_spike : job_.trainer.on_nonfinite;
  if (policy == "stop")
    return fail(ErrorCode::diverged,
                fmt::format("step {}: {}, and {} is \"stop\"; its update was not made; look at the "
                            "data of this step, or lower learning_rate_scheduler.learning_rate",
                            report.step, report.skip_reason,
                            spike ? "trainer.on_loss_spike" : "trainer.on_nonfinite"));
  const std::int64_t steps = config::rollback_steps(policy);
  if (steps == 0) return false;
  SORTIE_TRY(roll_back({report.step, report.step - steps, report.next_sample, report.skip_reason}));
  return true;
}

Result<bool> Trainer::compare_replicas(const StepReport& report) {
  const ReplicaDifference difference = find_difference(layout_, rank_, store());
  if (difference.text.empty()) {
    last_equal_ = report.step;
    return false;
  }
  if (difference.majority) report_.replicas_differ(report.step, difference);
  const std::int64_t steps = config::rollback_steps(job_.trainer.on_replica_mismatch);
  if (steps == 0) return std::unexpected(difference_error(difference, report.step));
  SORTIE_TRY(roll_back({report.step, std::min(report.step - steps, last_equal_), std::nullopt,
                        fmt::format("replicas differ: {}", difference.text)}));
  return true;
}

Result<std::optional<SavedCheckpoint>> Trainer::save_alone() {
  // Only a site's leaders have all of its state; the site copies it from another one instead.
  if (!whole_ || outer_ || !step_.at_border() || progress_.step == 0) return std::nullopt;
  return checkpointer_.save_alone(progress_);
}

RankEnd::LastSave Trainer::save_last() {
  RankEnd::LastSave last;
  last.asked = signals_ && signals_->stop_requested();
  if (!signals_) return last;
  if (rank_.compute.gpu) {
    // Work after the failed collective was already enqueued, and has used its values.
    last.text = "; the state on its GPU is not that of a completed step, and is not saved";
    return last;
  }
  signals_->last_save(save_seconds_);
  const auto saved = save_alone();
  if (!saved) {
    last.text = fmt::format("; the state of step {} could not be saved: {}", progress_.step,
                            saved.error().message);
  } else if (*saved) {
    last.saved = true;
    last.text = fmt::format("; this rank has saved the state of step {} in {}", progress_.step,
                            (*saved)->path.string());
    report_.last_checkpoint(progress_.step, **saved);
  }
  return last;
}

}  // namespace sortie::trainer
