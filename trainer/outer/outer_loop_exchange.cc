// What a site exchanges with the others: gradients of plain steps, changes of fragments.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trainer/outer/outer_loop.h"

namespace sortie::trainer::outer {
namespace {

constexpr std::size_t kFewestNorms = 3, kMostNorms = 16;

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

/// Averages the gradients of a plain step over the sites and returns the mean loss. The loss is
/// sent as one more element after the last fragment.
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
  for (std::size_t i = 0; i <= last; ++i) {
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
    start(std::move(task));
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

/// Computes and judges the change of a fragment, and passes it to the leader's thread.
Result<> OuterLoop::send(std::int64_t number) {
  FragmentState& fragment = fragments_[static_cast<std::size_t>(number)];
  vector_.resize(static_cast<std::size_t>(map_.elements()));
  map_.gather(PartValues::weights, vector_);
  std::vector<float> change;
  double square = 0.0;
  if (leader_) {
    change.reserve(static_cast<std::size_t>(elements_of(fragment.ranges)));
    for (const PartRange& range : fragment.ranges)
      for (auto i = static_cast<std::size_t>(range.begin); i < static_cast<std::size_t>(range.end);
           ++i) {
        change.push_back(state_.weights[i] - vector_[i]);
        square += double{change.back()} * change.back();
      }
  } else {
    change.resize(static_cast<std::size_t>(elements_of(fragment.ranges)));
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
  start(ExchangeTask{.round = work_.round,
                     .fragment = number,
                     .tokens = fragment.abstains ? 0 : tokens_,
                     .abstains = fragment.abstains,
                     .reason = std::move(reason),
                     .change = std::move(change)});
  return {};
}

/// Puts the outer weights of a fragment into the site's own. The outer state stays that of the
/// previous round until all fragments of this one are committed, so that a site that is stopped
/// saves one round for all of the model.
Result<> OuterLoop::apply(std::int64_t number, const TrainingProgress& progress) {
  FragmentState& fragment = fragments_[static_cast<std::size_t>(number)];
  SORTIE_ASSIGN_OR_RETURN(auto outcome, next_answer<ExchangeOutcome>(progress));
  double copied = outcome && !outcome->copied_from.empty() ? 1.0 : 0.0;
  layout_.world().all_reduce_sum({&copied, 1});
  if (outcome) keep_mean(fragment, std::move(*outcome));
  fragment.applied = true;
  const bool last = std::ranges::all_of(fragments_, &FragmentState::applied);
  if (last) take_outer_step();
  // Alpha: the share of its own weights that a site keeps, unless it abstained.
  const auto keep = static_cast<float>(fragment.abstains ? 0.0 : site_.settings.mix);
  const bool all_alike = copied > 0 || (fragments_.size() == 1 && keep == 0.0f);
  vector_.resize(static_cast<std::size_t>(map_.elements()));
  if (!all_alike) map_.gather(PartValues::weights, vector_);
  const auto put_outer_weights = [&](const FragmentState& one, float share) {
    std::vector<float> values(static_cast<std::size_t>(elements_of(one.ranges)));
    if (last)
      take_ranges(state_.weights, one.ranges, values);
    else
      state_.weights_after(site_.settings, one.ranges, one.mean, values);
    if (share > 0.0f) {
      std::vector<float> own(values.size());
      take_ranges(vector_, one.ranges, own);
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = share * own[i] + (1.0f - share) * values[i];
    }
    put_ranges(values, one.ranges, vector_);
  };
  if (leader_ && all_alike) {
    vector_ = state_.weights;
    for (const FragmentState& one : fragments_)
      if (!last && one.applied) put_outer_weights(one, 0.0f);
  } else if (leader_) {
    put_outer_weights(fragment, keep);
  }
  map_.scatter(PartValues::weights, vector_);
  weights_written();
  return {};
}

/// Keeps the committed mean of a fragment until those of the other fragments are there.
void OuterLoop::keep_mean(FragmentState& fragment, ExchangeOutcome outcome) {
  add_report(outcome.report);
  fragment.mean = std::move(outcome.values);
  fragment.feeds = outcome.feeds;
}

/// Applies the outer step of the round to the state. All leaders of the site then know that all
/// fragments are committed, and nothing is in flight.
void OuterLoop::take_outer_step() {
  if (!leader_) return;
  for (std::size_t i = 0; i < fragments_.size(); ++i) {
    FragmentState& fragment = fragments_[i];
    state_.apply(site_.settings, fragment.ranges, fragment.mean);
    if (fragment.feeds) leader_->keep_error(i);
    fragment.mean = {};
  }
}

/// Sends and applies the fragments that are due `at` steps of the schedule after the start of the
/// round.
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
  if (!exchanged) return join_again(exchanged.error(), progress);
  if (done_ == total_) {
    end_round(progress);
    own_differs_ = fragments_.size() > 1 || site_.settings.mix > 0;
  }
  return {};
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

}  // namespace sortie::trainer::outer
