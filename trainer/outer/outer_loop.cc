#include "trainer/outer/outer_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "common/base/elapsed.h"
#include "common/base/log.h"
#include "common/config/forms.h"
#include "trainer/state/rank_texts.h"

namespace sortie::trainer::outer {
namespace {

using LoopClock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLeaderPause{20};

}  // namespace

OuterLoop::OuterLoop(const Site& site, const config::JobConfig& job, const config::BatchPlan& batch,
                     const Layout& layout, TrainingStep& step, std::function<bool()> stop)
    : site_(site),
      job_(job),
      batch_(batch),
      layout_(layout),
      step_(step),
      stop_(std::move(stop)),
      map_(step.store(), layout) {
  for (auto& ranges : cut_into_fragments(map_.pieces(), site.settings.fragments))
    fragments_.push_back({.ranges = std::move(ranges)});
}

OuterLoop::~OuterLoop() = default;

Result<> OuterLoop::check(const Site& site, const config::JobConfig& job) {
  const auto refuse = [&](const char* key, const char* why, const char* what) {
    return fail(ErrorCode::config, fmt::format("{}: with several sites (this one is {}) {}; {}",
                                               key, site.name, why, what));
  };
  if (job.trainer.memory_checkpoint_interval > 0)
    return refuse("trainer.memory_checkpoint_interval",
                  "the memory of one site's hosts lacks the momentum of the outer weights",
                  "set it to 0; a site that was lost copies the state of another one");
  if (job.topology.batch_rampup_start > 0)
    return refuse("topology.batch_rampup_start", "the samples of a round are of one batch size",
                  "set it to 0");
  if (job.model.moe.bias_update_rate > 0)
    return refuse("model.moe.bias_update_rate",
                  "the biases of the routers follow the tokens of one site and would differ",
                  "set it to 0 and use model.moe's balance loss");
  for (const auto& [key, policy] :
       {std::pair{"trainer.on_nonfinite", &job.trainer.on_nonfinite},
        {"trainer.on_loss_spike", &job.trainer.on_loss_spike},
        {"trainer.on_replica_mismatch", &job.trainer.on_replica_mismatch}})
    if (config::rollback_steps(*policy) > 0)
      return refuse(key, "one site can not go back to an earlier step alone",
                    "choose a policy without a rollback");
  return {};
}

std::int64_t OuterLoop::first_step_of(std::int64_t round) const {
  if (!site_.settings.rounds) return round - 1;
  const std::int64_t plain_rounds = site_.settings.start_after;
  if (round <= plain_rounds) return round - 1;
  return plain_rounds + (round - 1 - plain_rounds) * site_.settings.every;
}

std::int64_t OuterLoop::steps_of(std::int64_t round) const {
  if (plain(round)) return 1;
  return std::min(site_.settings.every, job_.trainer.train_iterations - first_step_of(round));
}

/// Steps of a site in a round of which it was granted `granted`: the last round may be shorter, and
/// a slow site does fewer steps of it.
std::int64_t OuterLoop::steps_to_do(std::int64_t round, std::int64_t granted) const {
  const std::int64_t steps = steps_of(round);
  if (plain(round) || granted >= site_.settings.every) return steps;
  return std::max<std::int64_t>(granted * steps / site_.settings.every, 1);
}

/// The step of the schedule that is the `number`th of `total` steps of a site in the round.
std::int64_t OuterLoop::scheduled_step(std::int64_t round, std::int64_t number,
                                       std::int64_t total) const {
  return first_step_of(round) + (number * steps_of(round) + total - 1) / total;
}

void OuterLoop::weights_written() {
  step_.store().refresh_compute_copy(step_.context());
  step_.spread_weights();
  step_.store().weights_changed();
}

/// Initialises the outer weights with those of the store, if not done yet. Collective.
void OuterLoop::make_outer_state() {
  if (has_outer_state_) return;
  has_outer_state_ = true;
  const auto elements = static_cast<std::size_t>(map_.elements());
  state_.weights.resize(elements);
  if (state_.momentum.empty()) state_.momentum.assign(elements, 0.0f);
  map_.gather(PartValues::weights, state_.weights);
  state_.round = progress_.round;
}

Result<> OuterLoop::start(TrainingProgress& progress) {
  SORTIE_TRY(check_same_rounds(progress));
  resumed_ = progress.outer;
  progress.outer.own = 0;
  progress.outer.begin = first_step_of(progress.outer.round + 1);
  progress_ = progress.outer;
  next_position_ = progress_.position;
  if (resumed_.done > 0 && !can_resume_round()) begin_round_again(progress);
  fresh_ = progress.step == 0 && progress_.round == 0;
  Result<> made;
  if (map_.leads()) {
    made = [&]() -> Result<> {
      std::vector<std::int64_t> elements;
      for (const FragmentState& fragment : fragments_)
        elements.push_back(elements_of(fragment.ranges));
      SORTIE_ASSIGN_OR_RETURN(coordinator_, site_.make_coordinator(map_.part()));
      SORTIE_ASSIGN_OR_RETURN(links_, site_.make_links(map_.part()));
      leader_ = std::make_unique<Leader>(
          LeaderParts{site_, *coordinator_, *links_, state_, memory_,
                      static_cast<int>(std::max<std::int64_t>(job_.trainer.threads, 1))},
          elements);
      if (errors_.empty()) return {};
      for (std::size_t i = 0; i < fragments_.size(); ++i) {
        std::vector<float> error(static_cast<std::size_t>(elements[i]));
        take_ranges(errors_, fragments_[i].ranges, error);
        leader_->restore_error(i, error);
      }
      return {};
    }();
  }
  SORTIE_TRY(share_failure_of_any(layout_.world(), made));
  if (!plain(progress_.round + 1)) make_outer_state();
  return {};
}

/// Blocks until every leader has an answer. Collective.
void OuterLoop::await_leaders(const TrainingProgress& progress) {
  const auto begin = LoopClock::now();
  while (true) {
    if (leader_) leader_->wait(kLeaderPause);
    double flags[] = {leader_ && !leader_->has_answer() ? 1.0 : 0.0,
                      leader_ && leader_->wants_state() ? 1.0 : 0.0,
                      !cancelled_ && stop_ && stop_() ? 1.0 : 0.0};
    layout_.world().all_reduce_sum(flags);
    if (flags[0] == 0) break;
    if (flags[2] > 0) {
      cancelled_ = true;
      if (leader_) leader_->cancel();
    }
    if (flags[1] > 0) {
      gather_plain_state(progress);
      if (leader_)
        leader_->give_state({{vector_, first_moments_, second_moments_},
                             std::as_writable_bytes(std::span(&numbers_, 1))});
    }
  }
  seconds_waited_ += seconds_since(begin);
}

template <class T>
Result<std::optional<T>> OuterLoop::next_answer(const TrainingProgress& progress) {
  await_leaders(progress);
  std::optional<T> answer;
  Result<> outcome;
  if (leader_) {
    Result<LeaderAnswer> taken = leader_->take();
    if (taken)
      answer = std::get<T>(std::move(*taken));
    else
      outcome = std::unexpected(taken.error());
  }
  --pending_;
  SORTIE_TRY(share_failure_of_any(layout_.world(), outcome));
  return answer;
}
template Result<std::optional<training::OuterJoined>> OuterLoop::next_answer(
    const TrainingProgress& progress);
template Result<std::optional<ExchangeOutcome>> OuterLoop::next_answer(
    const TrainingProgress& progress);
template Result<std::optional<training::OuterWork>> OuterLoop::next_answer(
    const TrainingProgress& progress);

/// All ranks call it at the same points, whether or not they lead a part.
void OuterLoop::start(LeaderTask task) {
  ++pending_;
  if (leader_) leader_->start(std::move(task));
}

/// Discards all outstanding answers: they belong to a round that the site is no longer part of, and
/// do not answer later questions. They arrive because the coordinator refuses the questions of such
/// a site.
Result<> OuterLoop::drop_answers(const TrainingProgress& progress) {
  for (; pending_ > 0; --pending_) {
    await_leaders(progress);
    if (leader_) (void)leader_->take();
  }
  if (cancelled_) return exchange_ended();
  return {};
}

bool OuterLoop::left_out() const {
  return leader_ && work_.steps > 0 && !plain(work_.round) && !leader_->left_out().empty();
}

bool OuterLoop::lacks_state() const {
  double lacks = lacks_state_ || (leader_ && leader_->lacks_state()) ? 1.0 : 0.0;
  layout_.world().all_reduce_sum({&lacks, 1});
  return lacks > 0;
}

Result<std::optional<StepOrder>> OuterLoop::next_step(TrainingProgress& progress) {
  while (work_.steps == 0) {
    const auto got = [&]() -> Result<> {
      if (!joined_) SORTIE_TRY(join(progress));
      if (missed_end_) return {};
      if (lacks_state_ && !plain(progress_.round + 1)) return sit_out(progress);
      return ask_for_work(progress);
    }();
    if (!got) SORTIE_TRY(step_lost(got.error(), progress));
    if (missed_end_) return std::nullopt;
  }
  const std::int64_t round = progress_.round + 1;
  StepOrder order;
  order.step = scheduled_step(round, done_ + 1, total_);
  order.first_sample = work_.first_sample + done_ * work_.batch;
  order.end_sample = work_.first_sample + work_.steps * work_.batch;
  if (progress_.warm_up > 0)
    order.rate = static_cast<double>(kJoinWarmUp - progress_.warm_up + 1) / (kJoinWarmUp + 1);
  if (plain(round))
    order.sum_over_sites = [this, &progress](double loss, std::int64_t targets) {
      return mean_gradients(loss, targets, progress);
    };
  step_begun_ = LoopClock::now();
  return order;
}

Result<> OuterLoop::step_taken(const StepReport& report, TrainingProgress& progress,
                               bool left_out) {
  const double seconds = seconds_since(step_begun_);
  const std::int64_t round = work_.round;
  ++done_;
  tokens_ += report.tokens;
  if (progress_.warm_up > 0) --progress_.warm_up;
  if (plain(round)) {
    seconds_in_steps_ += std::max(seconds - seconds_waited_, 0.0);
    step_seconds_ = seconds_in_steps_;
    end_round(progress);
    return {};
  }
  seconds_in_steps_ += seconds;
  step_seconds_ = seconds_in_steps_ / static_cast<double>(done_ - done_before_);
  own_differs_ = true;
  set_saved_steps(report.step);
  progress.outer = progress_;
  if (left_out)
    return join_again({ErrorCode::config, fmt::format("coordinator: round {} was committed without "
                                                      "this site",
                                                      round)},
                      progress);
  return exchange_due(report.step - first_step_of(round), progress);
}

void OuterLoop::end_round(TrainingProgress& progress) {
  ++progress_.round;
  state_.round = progress_.round;
  progress_.position = next_position_;
  progress_.begin = first_step_of(progress_.round + 1);
  work_ = {};
  done_ = 0;
  set_saved_steps(progress.step);
  progress.outer = progress_;
  fresh_ = false;
  refusals_ = 0;
  for (FragmentState& fragment : fragments_) fragment.begin_round();
  tell_round(progress);
}

void OuterLoop::tell_round(const TrainingProgress& progress) {
  training::RoundEvent event = std::exchange(event_, {});
  const double signal = std::exchange(signal_, 0.0), noise = std::exchange(noise_, 0.0);
  if (noise > 0 && signal > 0) event.codec_db = 10.0 * std::log10(signal / noise);
  if (layout_.world().rank() != 0) return;
  const bool is_plain = plain(progress_.round);
  if (is_plain && progress_.round % std::max<std::int64_t>(job_.logger.log_interval, 1) != 0)
    return;
  event.round = progress_.round;
  event.step = progress.step;
  event.seconds = seconds_since(round_begun_);
  event.wait_seconds = seconds_waited_;
  event.utilisation =
      event.seconds > 0 ? std::clamp(seconds_in_steps_ / event.seconds, 0.0, 1.0) : 0.0;
  events_.push_back(event);
}

void OuterLoop::show_outer_weights(TrainingProgress& progress) {
  if (!own_differs_) return;
  SORTIE_CHECK(!shows_outer_, "the outer weights are shown");
  shown_.resize(static_cast<std::size_t>(map_.elements()));
  map_.gather(PartValues::weights, shown_);
  map_.scatter(PartValues::weights, state_.weights);
  weights_written();
  shows_outer_ = true;
  progress.outer.own = 1;
}

void OuterLoop::show_own_weights(TrainingProgress& progress) {
  if (!shows_outer_) return;
  progress.outer.own = 0;
  map_.scatter(PartValues::weights, shown_);
  weights_written();
  shows_outer_ = false;
}

void OuterLoop::leave(const std::string& reason) {
  if (leader_ && joined_ && !cancelled_) leader_->leave(reason);
}

}  // namespace sortie::trainer::outer
