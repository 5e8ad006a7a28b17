// How a site joins a run: the state that it has or copies, and the work that it gets.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "trainer/outer/outer_loop.h"

namespace sortie::trainer::outer {
namespace {

constexpr std::int64_t kMostRefusals = 8;  // in a row

std::uint64_t hash_with(std::span<const float> values, std::uint64_t seed) {
  return XXH3_64bits_withSeed(values.data(), values.size_bytes(), seed);
}

}  // namespace

void OuterLoop::gather_plain_state(const TrainingProgress& progress) {
  const auto elements = static_cast<std::size_t>(map_.elements());
  for (std::vector<float>* values : {&vector_, &first_moments_, &second_moments_})
    values->resize(elements);
  map_.gather(PartValues::weights, vector_);
  map_.gather(PartValues::moment1, first_moments_);
  map_.gather(PartValues::moment2, second_moments_);
  numbers_ = {progress.updates, progress.consecutive_skips, progress.losses,
              progress.gradient_norms};
}

/// Distributes the state that the leaders received from another site; all ranks use rank 0's
/// numbers.
void OuterLoop::take_plain_state(TrainingProgress& progress) {
  map_.scatter(PartValues::weights, vector_);
  map_.scatter(PartValues::moment1, first_moments_);
  map_.scatter(PartValues::moment2, second_moments_);
  layout_.world().broadcast(std::as_writable_bytes(std::span(&numbers_, 1)), 0);
  progress.updates = numbers_.updates;
  progress.consecutive_skips = numbers_.consecutive_skips;
  progress.losses = numbers_.losses;
  progress.gradient_norms = numbers_.gradient_norms;
  step_.resume(progress);
  weights_written();
}

/// ErrorCode::config: the site joins again. Other errors end it.
Result<> OuterLoop::step_lost(const Error& error, TrainingProgress& progress) {
  if (error.code != ErrorCode::config || cancelled_) return std::unexpected(error);
  if (++refusals_ > kMostRefusals)
    return fail(ErrorCode::lost,
                fmt::format("site {}: refused {} times in a row, the last time: {}; see what the "
                            "other sites say",
                            site_.name, refusals_, error.message));
  const std::int64_t in_vain = work_.steps == 0 ? 0 : plain(work_.round) ? 1 : done_;
  notes_.push_back(fmt::format(
      "site {}: {}{}", site_.name, error.message,
      in_vain == 0   ? ""
      : in_vain == 1 ? fmt::format("; a step of round {} was in vain", work_.round)
                     : fmt::format("; {} steps of round {} were in vain", in_vain, work_.round)));
  steps_in_vain_ += in_vain;
  SORTIE_TRY(drop_answers(progress));
  joined_ = false;
  work_ = {};
  done_ = 0;
  for (FragmentState& fragment : fragments_) fragment.begin_round();
  return {};
}

/// The site joins again before the next step. If no step is left, it joins at once: the loop then
/// continues with the run's current state.
Result<> OuterLoop::join_again(const Error& error, TrainingProgress& progress) {
  SORTIE_TRY(step_lost(error, progress));
  if (progress.step < job_.trainer.train_iterations) return {};
  while (!joined_ || (lacks_state_ && !missed_end_ && !plain(progress_.round + 1))) {
    const Result<> back = !joined_ ? join(progress) : sit_out(progress);
    if (!back) SORTIE_TRY(step_lost(back.error(), progress));
  }
  return {};
}

Result<> OuterLoop::join(TrainingProgress& progress) {
  const bool is_plain = plain(progress_.round + 1);
  if (!is_plain) make_outer_state();
  if (is_plain) gather_plain_state(progress);
  training::OuterJoin question{
      .site = site_.name,
      .part = map_.part(),
      .parts = map_.parts(),
      .round = lacks_state_ ? 0 : progress_.round,
      .hash = 0,
      .fresh = fresh_,
      .position = progress_.position,
      .elements = map_.elements(),
      .address = leader_ ? links_->address() : "",
      .steps_in_vain = steps_in_vain_,
      .work_steps = resumed_.work_batch == batch_.global_batch_size ? resumed_.work_steps : 0,
      .first_sample = resumed_.first_sample};
  if (leader_)
    question.hash =
        is_plain ? hash_with(second_moments_, hash_with(first_moments_, hash_with(vector_, 0)))
                 : state_.hash();
  start(std::move(question));
  SORTIE_ASSIGN_OR_RETURN(const auto joined, next_answer<training::OuterJoined>(progress));
  struct {
    std::int64_t round = 0, lacks = 0, over = 0;
  } told;
  if (joined)
    told = {joined->round, !joined->donors.empty() || joined->over ? 1 : 0, joined->over ? 1 : 0};
  layout_.world().broadcast(std::as_writable_bytes(std::span(&told, 1)), 0);
  joined_ = true;
  steps_in_vain_ = 0;
  lacks_state_ = told.lacks != 0;
  if (!lacks_state_ && told.round != progress_.round)
    return fail(ErrorCode::protocol,
                fmt::format("coordinator: site {} must continue from round {}, and has round {}",
                            site_.name, told.round, progress_.round));
  missed_end_ = lacks_state_ &&
                (told.over != 0 || first_step_of(told.round + 1) >= job_.trainer.train_iterations);
  if (missed_end_) {
    notes_.push_back(
        fmt::format("site {}: the run has ended at round {} while this site was "
                    "not in; the final weights are at the other sites",
                    site_.name, told.round));
    return {};
  }
  if (lacks_state_ && leader_) leader_->set_lacks_state(joined->donors);
  if (lacks_state_) {
    note_dropped_steps("are not used, because it takes the weights of another site",
                       first_step_of(told.round + 1));
    resumed_ = {};
    progress_.round = told.round;
    if (!plain(told.round + 1)) make_outer_state();
  } else if (resumed_.own != 0 && resumed_.done == 0) {
    map_.scatter(PartValues::weights, shown_);
    weights_written();
    own_differs_ = true;
    resumed_ = {};
  } else if (own_differs_) {
    map_.scatter(PartValues::weights, state_.weights);
    weights_written();
    own_differs_ = false;
  }
  progress_.begin = progress.step = first_step_of(progress_.round + 1);
  if (resumed_.done == 0) set_saved_steps(progress.step);
  progress.outer = progress_;
  return {};
}

/// A site that lacks the outer weights takes part in the round without its own change: it copies
/// the state of the previous round from a donor, and then gets the mean of the round like all
/// others.
Result<> OuterLoop::sit_out(TrainingProgress& progress) {
  const std::int64_t round = progress_.round + 1;
  round_begun_ = std::chrono::steady_clock::now();
  seconds_in_steps_ = seconds_waited_ = 0.0;
  for (std::size_t i = 0; i < fragments_.size(); ++i)
    start(ExchangeTask{
        .round = round,
        .fragment = static_cast<std::int64_t>(i),
        .abstains = true,
        .reason = "it copies the outer weights",
        .change = std::vector<float>(static_cast<std::size_t>(elements_of(fragments_[i].ranges)))});
  for (FragmentState& fragment : fragments_) {
    SORTIE_ASSIGN_OR_RETURN(auto outcome, next_answer<ExchangeOutcome>(progress));
    if (outcome) keep_mean(fragment, std::move(*outcome));
  }
  take_outer_step();
  lacks_state_ = false;
  map_.scatter(PartValues::weights, state_.weights);
  weights_written();
  progress_.warm_up = kJoinWarmUp;
  progress.step = first_step_of(round) + steps_of(round);
  end_round(progress);
  own_differs_ = false;
  notes_.push_back(fmt::format("site {}: has the outer weights of round {} from another site",
                               site_.name, round));
  return {};
}

Result<> OuterLoop::ask_for_work(TrainingProgress& progress) {
  const std::int64_t round = progress_.round + 1;
  start(training::OuterNext{.round = round, .step_seconds = step_seconds_.value_or(0.0)});
  SORTIE_ASSIGN_OR_RETURN(const auto granted, next_answer<training::OuterWork>(progress));
  training::OuterWork work = granted.value_or(training::OuterWork{});
  layout_.world().broadcast(std::as_writable_bytes(std::span(&work, 1)), 0);
  if (work.round != round || work.steps < 1 || work.batch != batch_.global_batch_size)
    return fail(ErrorCode::protocol,
                fmt::format("coordinator: {} steps of {} samples in round {}, and site {} takes "
                            "{} samples a step and is at round {}",
                            work.steps, work.batch, work.round, site_.name,
                            batch_.global_batch_size, round));
  work_ = work;
  done_ = done_before_ = 0;
  tokens_ = 0;
  round_begun_ = std::chrono::steady_clock::now();
  seconds_in_steps_ = seconds_waited_ = 0.0;
  total_ = steps_to_do(round, work.steps);
  next_position_ = std::max(progress_.position, work.first_sample + work.steps * work.batch);
  if (plain(round)) return {};
  make_outer_state();
  if (resumed_.done > 0) return resume_round(progress);
  resumed_ = {};
  return {};
}

}  // namespace sortie::trainer::outer
