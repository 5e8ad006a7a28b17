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
constexpr std::size_t kFewestNorms = 3, kMostNorms = 16;

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

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

void OuterLoop::weights_written() {
  step_.store().refresh_compute_copy(step_.context());
  step_.spread_weights();
  step_.store().weights_changed();
}

/// The outer weights begin as those of the store. Collective.
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
  resumed_ = progress.outer;
  progress.outer.own = 0;
  progress_ = progress.outer;
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

/// Waits until every leader has an answer; alike on all ranks.
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
  SORTIE_TRY(share_failure_of_any(layout_.world(), outcome));
  return answer;
}
template Result<std::optional<training::OuterJoined>> OuterLoop::next_answer(
    const TrainingProgress& progress);
template Result<std::optional<training::OuterWork>> OuterLoop::next_answer(
    const TrainingProgress& progress);

Result<StepOrder> OuterLoop::next_step(TrainingProgress& progress) {
  while (work_.steps == 0) {
    const auto got = [&]() -> Result<> {
      if (!joined_) SORTIE_TRY(join(progress));
      if (first_step_of(progress_.round + 1) >= job_.trainer.train_iterations)
        return fail(ErrorCode::lost,
                    fmt::format("site {}: the run is at round {}, which is its last one; there is "
                                "nothing left to train",
                                site_.name, progress_.round));
      if (lacks_state_ && !plain(progress_.round + 1)) return sit_out(progress);
      return ask_for_work(progress);
    }();
    if (!got) SORTIE_TRY(step_lost(got.error()));
  }
  const std::int64_t round = progress_.round + 1;
  const std::int64_t steps = steps_of(round);
  StepOrder order;
  order.step = first_step_of(round) + ((done_ + 1) * steps + total_ - 1) / total_;
  order.first_sample = work_.first_sample + done_ * work_.batch;
  order.end_sample = work_.first_sample + work_.steps * work_.batch;
  if (warm_steps_ > 0)
    order.rate = static_cast<double>(kJoinWarmUp - warm_steps_ + 1) / (kJoinWarmUp + 1);
  if (plain(round))
    order.sum_over_sites = [this, &progress](double loss, std::int64_t targets) {
      return mean_gradients(loss, targets, progress);
    };
  step_begun_ = LoopClock::now();
  return order;
}

/// Of a plain step. The mean loss travels as one more element behind the last fragment.
Result<double> OuterLoop::mean_gradients(double loss, std::int64_t targets,
                                         TrainingProgress& progress) {
  const auto elements = static_cast<std::size_t>(map_.elements());
  std::vector<float> gradients(elements);
  map_.gather(PartValues::gradients, gradients);
  double unfit =
      std::isfinite(loss) &&
              std::ranges::all_of(gradients, [](float value) { return std::isfinite(value); })
          ? 0.0
          : 1.0;
  layout_.world().all_reduce_sum({&unfit, 1});
  const std::size_t last = fragments_.size() - 1;
  for (std::size_t i = 0; i <= last && leader_; ++i) {
    ExchangeTask task{
        .round = progress_.round + 1,
        .fragment = static_cast<std::int64_t>(i),
        .tokens = unfit > 0 || lacks_state_ ? 0 : targets,
        .abstains = unfit > 0 || lacks_state_,
        .reason = lacks_state_ ? "it copies the weights" : "its gradients are not finite",
        .change = std::vector<float>(static_cast<std::size_t>(elements_of(fragments_[i].ranges))),
        .outer = false};
    if (task.reason = task.abstains ? task.reason : ""; !task.abstains)
      take_ranges(gradients, fragments_[i].ranges, task.change);
    if (i == last) task.change.push_back(task.abstains ? 0.0f : static_cast<float>(loss));
    leader_->start(std::move(task));
  }
  double mean_loss = 0.0, copied = 0.0;
  for (std::size_t i = 0; i <= last; ++i) {
    SORTIE_ASSIGN_OR_RETURN(auto outcome, next_answer<ExchangeOutcome>(progress));
    if (!outcome) continue;
    if (!outcome->copied_from.empty()) copied = 1.0;
    if (i == last) {
      mean_loss = outcome->values.back();
      outcome->values.pop_back();
    }
    put_ranges(outcome->values, fragments_[i].ranges, gradients);
    add_report(outcome->report);
  }
  layout_.world().all_reduce_sum({&copied, 1});
  if (copied > 0) {
    take_plain_state(progress);
    lacks_state_ = false;
    notes_.push_back(fmt::format("site {}: has the weights of round {} from another site",
                                 site_.name, progress_.round));
  }
  map_.scatter(PartValues::gradients, gradients);
  layout_.world().broadcast(std::as_writable_bytes(std::span(&mean_loss, 1)), 0);
  return mean_loss;
}

/// The change of a fragment, to the leader's thread.
Result<> OuterLoop::send(std::int64_t number) {
  FragmentState& fragment = fragments_[static_cast<std::size_t>(number)];
  vector_.resize(static_cast<std::size_t>(map_.elements()));
  map_.gather(PartValues::weights, vector_);
  const auto count = static_cast<std::size_t>(elements_of(fragment.ranges));
  std::vector<float> change(count), own(count);
  double square = 0.0;
  if (leader_) {
    take_ranges(state_.weights, fragment.ranges, change);
    take_ranges(vector_, fragment.ranges, own);
    for (std::size_t i = 0; i < count; ++i) {
      change[i] -= own[i];
      square += double{change[i]} * change[i];
    }
  }
  layout_.world().all_reduce_sum({&square, 1});
  const double norm = std::sqrt(square);
  std::string reason;
  if (!std::isfinite(norm))
    reason = "the change of its weights is not finite";
  else if (fragment.norms.size() >= kFewestNorms && norm > kOutlierNorm * median_of(fragment.norms))
    reason = fmt::format(
        "the norm {:.4g} of the change of its weights is more than {:.0f} times "
        "the median of those before, {:.4g}",
        norm, kOutlierNorm, median_of(fragment.norms));
  fragment.abstains = !reason.empty();
  fragment.abstained = fragment.abstains ? fragment.abstained + 1 : 0;
  if (!fragment.abstains) {
    fragment.norms.push_back(norm);
    if (fragment.norms.size() > kMostNorms) fragment.norms.erase(fragment.norms.begin());
  } else {
    notes_.push_back(
        fmt::format("round {}: site {} abstains: {}", work_.round, site_.name, reason));
    std::ranges::fill(change, 0.0f);
  }
  if (fragment.abstained >= kMostAbstentions)
    return fail(ErrorCode::diverged,
                fmt::format("site {}: {} rounds in a row {}; lower "
                            "learning_rate_scheduler.learning_rate, or look at the hosts and the "
                            "data of this site",
                            site_.name, fragment.abstained, reason));
  fragment.sent = true;
  if (leader_)
    leader_->start(ExchangeTask{.round = work_.round,
                                .fragment = number,
                                .tokens = fragment.abstains ? 0 : tokens_,
                                .abstains = fragment.abstains,
                                .reason = std::move(reason),
                                .change = std::move(change),
                                .ranges = fragment.ranges});
  return {};
}

Result<> OuterLoop::apply(std::int64_t number, const TrainingProgress& progress) {
  FragmentState& fragment = fragments_[static_cast<std::size_t>(number)];
  SORTIE_ASSIGN_OR_RETURN(const auto outcome, next_answer<ExchangeOutcome>(progress));
  double copied = outcome && !outcome->copied_from.empty() ? 1.0 : 0.0;
  layout_.world().all_reduce_sum({&copied, 1});
  if (outcome) add_report(outcome->report);
  // Alpha: the share of its own weights that a site keeps, where they are fit.
  const auto keep = static_cast<float>(fragment.abstains ? 0.0 : site_.settings.mix);
  const bool all_alike = copied > 0 || (fragments_.size() == 1 && keep == 0.0f);
  vector_.resize(static_cast<std::size_t>(map_.elements()));
  if (!all_alike) map_.gather(PartValues::weights, vector_);
  if (leader_ && all_alike) {
    vector_ = state_.weights;
  } else if (leader_) {
    std::vector<float> own(outcome->values.size());
    take_ranges(vector_, fragment.ranges, own);
    for (std::size_t i = 0; i < own.size(); ++i)
      own[i] =
          keep == 0.0f ? outcome->values[i] : keep * own[i] + (1.0f - keep) * outcome->values[i];
    put_ranges(own, fragment.ranges, vector_);
  }
  map_.scatter(PartValues::weights, vector_);
  weights_written();
  fragment.applied = true;
  return {};
}

Result<> OuterLoop::step_taken(const StepReport& report, TrainingProgress& progress) {
  const double seconds = seconds_since(step_begun_);
  const std::int64_t round = work_.round;
  ++done_;
  tokens_ += report.tokens;
  if (warm_steps_ > 0) --warm_steps_;
  if (plain(round)) {
    seconds_in_steps_ += std::max(seconds - seconds_waited_, 0.0);
    step_seconds_ = seconds_in_steps_;
    end_round(progress);
    return {};
  }
  seconds_in_steps_ += seconds;
  step_seconds_ = seconds_in_steps_ / static_cast<double>(done_);
  own_differs_ = true;
  progress_.done = done_;
  progress_.first_sample = work_.first_sample;
  progress_.step = report.step;
  progress.outer = progress_;
  return exchange_due(report.step - first_step_of(round), progress);
}

/// What is due so many steps of the schedule after the begin of the round.
Result<> OuterLoop::exchange_due(std::int64_t at, TrainingProgress& progress) {
  const FragmentTimes times(site_.settings, steps_of(work_.round));
  const auto exchanged = [&]() -> Result<> {
    for (std::size_t i = 0; i < fragments_.size(); ++i) {
      const auto number = static_cast<std::int64_t>(i);
      if (!fragments_[i].sent && times.ready(number) <= at) SORTIE_TRY(send(number));
    }
    for (std::size_t i = 0; i < fragments_.size(); ++i) {
      const auto number = static_cast<std::int64_t>(i);
      if (fragments_[i].sent && !fragments_[i].applied && times.applied(number) <= at)
        SORTIE_TRY(apply(number, progress));
    }
    return {};
  }();
  if (!exchanged) {
    SORTIE_TRY(step_lost(exchanged.error()));
    // The last step may have been taken: the loop goes on with what the run has by then.
    while (!joined_ || (lacks_state_ && !plain(progress_.round + 1))) {
      const Result<> back = !joined_ ? join(progress) : sit_out(progress);
      if (!back) SORTIE_TRY(step_lost(back.error()));
    }
    return {};
  }
  if (done_ == total_) {
    end_round(progress);
    own_differs_ = fragments_.size() > 1 || site_.settings.mix > 0;
  }
  return {};
}

void OuterLoop::end_round(TrainingProgress& progress) {
  ++progress_.round;
  state_.round = progress_.round;
  progress_.done = 0;
  progress_.first_sample = 0;
  progress_.step = progress.step;
  progress.outer = progress_;
  fresh_ = false;
  refusals_ = 0;
  work_ = {};
  done_ = 0;
  for (FragmentState& fragment : fragments_) fragment.sent = fragment.applied = false;
  tell_round(progress);
}

void OuterLoop::add_report(const ExchangeReport& report) {
  event_.epoch = static_cast<std::int64_t>(report.epoch);
  event_.sites = report.members;
  event_.contributors = report.contributors;
  event_.aborted += report.aborted;
  event_.bytes_sent += static_cast<std::int64_t>(report.wire_sent);
  event_.bytes_received += static_cast<std::int64_t>(report.wire_received);
  event_.payload_bytes += static_cast<std::int64_t>(report.payload_sent + report.payload_received);
  if (!std::isfinite(event_.exchange_seconds)) event_.exchange_seconds = 0.0;
  event_.exchange_seconds += report.exchange_seconds;
  signal_ += report.signal;
  noise_ += report.noise;
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
