// The state of the rounds in a checkpoint, and how a site continues a round in which it was
// stopped.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "trainer/outer/outer_loop.h"

namespace sortie::trainer::outer {

std::vector<ExtraPiece> OuterLoop::pieces_to_load() {
  if (plain(std::numeric_limits<std::int64_t>::max())) return {};
  state_.momentum.assign(static_cast<std::size_t>(map_.elements()), 0.0f);
  shown_.assign(state_.momentum.size(), 0.0f);
  if (site_.settings.error_feedback) errors_.assign(state_.momentum.size(), 0.0f);
  std::vector<ExtraPiece> pieces;
  for (const auto& [prefix, values] : {std::pair{"outer.momentum.", &state_.momentum},
                                       {"outer.error.", &errors_},
                                       {"outer.own.", &shown_}})
    for (const PartPiece& piece : map_.pieces())
      if (!values->empty())
        pieces.push_back(
            {prefix + piece.name, piece.shape, piece.piece,
             std::span(*values).subspan(static_cast<std::size_t>(piece.at),
                                        static_cast<std::size_t>(piece.piece.elements()))});
  return pieces;
}

std::vector<ExtraPiece> OuterLoop::pieces_to_save() {
  if (!has_outer_state_) return {};
  std::vector<ExtraPiece> pieces;
  const auto add = [&](const char* prefix, std::vector<float>& values) {
    for (const PartPiece& piece : map_.pieces())
      pieces.push_back(
          {prefix + piece.name, piece.shape, piece.piece,
           std::span(values).subspan(static_cast<std::size_t>(piece.at),
                                     static_cast<std::size_t>(piece.piece.elements()))});
  };
  add("outer.momentum.", state_.momentum);
  if (shows_outer_) add("outer.own.", shown_);
  if (leader_ && site_.settings.error_feedback) {
    errors_.resize(static_cast<std::size_t>(map_.elements()));
    for (std::size_t i = 0; i < fragments_.size(); ++i)
      put_ranges(leader_->error(i), fragments_[i].ranges, errors_);
    add("outer.error.", errors_);
  }
  return pieces;
}

std::int64_t OuterLoop::most_elements() const {
  if (!site_.settings.rounds) return 0;
  return (site_.settings.error_feedback ? 3 : 2) * map_.elements();
}

/// The number of a round gives its steps. With other rounds than those of the checkpoint the run
/// would leave out steps, or repeat them.
Result<> OuterLoop::check_same_rounds(const TrainingProgress& progress) const {
  const OuterProgress& saved = progress.outer;
  // Older versions carried the counters of a site along in runs without sites.
  const bool without_rounds =
      progress.step > 0 &&
      ((saved.round == 0 && saved.done == 0) || progress.step > std::max(saved.begin, saved.step));
  const std::int64_t begin = first_step_of(saved.round + 1);
  if (!without_rounds && (saved.begin == 0 || saved.begin == begin)) return {};
  const std::string found =
      without_rounds
          ? fmt::format(
                "is at step {} of a run without rounds, and this job has rounds from its "
                "first step on",
                progress.step)
          : fmt::format("has {} rounds in {} steps, which are {} steps in this job", saved.round,
                        saved.begin, begin);
  const char* const same =
      without_rounds ? ""
                     : "set outer.every, outer.start_after and topology.gradient_compression as in "
                       "the run that saved it, or ";
  return fail(ErrorCode::config,
              fmt::format("outer.every: the checkpoint {}; {}start a new run with "
                          "trainer.load_weights_from and another trainer.save_dir",
                          found, same));
}

/// Whether the site can do the rest of the round in which the checkpoint was saved. It can not if
/// an exchange of the round was in flight while training went on, or if the round now has other
/// steps.
bool OuterLoop::can_resume_round() const {
  const std::int64_t round = resumed_.round + 1;
  const std::int64_t at = resumed_.step - first_step_of(round);
  if (resumed_.own == 0 || plain(round) || resumed_.work_steps < 1 ||
      resumed_.work_batch != batch_.global_batch_size)
    return false;
  const std::int64_t total = steps_to_do(round, resumed_.work_steps);
  if (resumed_.done > total || resumed_.step != scheduled_step(round, resumed_.done, total))
    return false;
  const FragmentTimes times(site_.settings, steps_of(round));
  const bool exchanged_at_the_end = fragments_.size() == 1 && times.overlap == 0;
  return exchanged_at_the_end || at < times.ready(0);
}

/// The steps that the checkpoint has of a round are not continued. The site asks for the same
/// samples.
void OuterLoop::begin_round_again(TrainingProgress& progress) {
  note_dropped_steps("can not be continued", first_step_of(resumed_.round + 1));
  steps_in_vain_ += resumed_.done;
  resumed_.own = resumed_.done = 0;
  progress.step = first_step_of(resumed_.round + 1);
}

void OuterLoop::note_dropped_steps(const char* what, std::int64_t step) {
  if (resumed_.done == 0) return;
  notes_.push_back(fmt::format(
      "site {}: the checkpoint of step {} has {} step{} of round {}, which {}; training continues "
      "after step {}",
      site_.name, resumed_.step, resumed_.done, resumed_.done == 1 ? "" : "s", resumed_.round + 1,
      what, step));
}

/// Continues the round after the steps that the checkpoint has of it.
Result<> OuterLoop::resume_round(TrainingProgress& progress) {
  if (resumed_.first_sample != work_.first_sample || resumed_.work_steps != work_.steps) {
    begin_round_again(progress);
    resumed_ = {};
    return {};
  }
  map_.scatter(PartValues::weights, shown_);
  weights_written();
  own_differs_ = true;
  done_ = done_before_ = resumed_.done;
  tokens_ = done_ * work_.batch * job_.model.sequence_length;
  progress.step = resumed_.step;
  resumed_ = {};
  set_saved_steps(progress.step);
  progress.outer = progress_;
  // The site may have been stopped while it waited for the others.
  return done_ < total_ ? Result<>()
                        : exchange_due(progress.step - first_step_of(work_.round), progress);
}

/// Sets what a checkpoint after this step says of the round in progress.
void OuterLoop::set_saved_steps(std::int64_t step) {
  progress_.done = done_;
  progress_.step = step;
  progress_.first_sample = work_.first_sample;
  progress_.work_steps = work_.steps;
  progress_.work_batch = work_.batch;
}

}  // namespace sortie::trainer::outer
