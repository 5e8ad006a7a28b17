#include "launcher/recovery/decide.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "common/base/quantity.h"
#include "common/config/forms.h"
#include "launcher/recovery/place_hosts.h"

namespace sortie::launcher {
namespace {

using config::RecoveryConfig;
using History = std::vector<AttemptEnd>;

double seconds(std::chrono::milliseconds time) {
  return static_cast<double>(time.count()) / 1000;
}

bool names_class(const std::vector<std::string>& names, FailureClass failure) {
  return std::ranges::find(names, failure_class_name(failure)) != names.end();
}

bool was_healthy(const RecoveryConfig& recovery, const AttemptEnd& attempt) {
  return attempt.failure == FailureClass::planned ||
         attempt.ended - attempt.begun >= seconds(recovery.healthy_after);
}

/// Whether the restart after this attempt counts for max_restarts. A restart after an attempt that
/// ran no rank always counts, because no_progress_limit ignores such attempts.
bool is_counted(const RecoveryConfig& recovery, const History& history, std::size_t attempt) {
  if (history[attempt].failure == FailureClass::planned) return false;
  return !history[attempt].started || names_class(recovery.counted, class_of(history, attempt));
}

/// Number of restarts before the last end that count within restart_window.
std::int64_t spent(const RecoveryConfig& recovery, const History& history) {
  const double since = history.back().ended - seconds(recovery.restart_window);
  std::int64_t count = 0;
  for (std::size_t i = 0; i + 1 < history.size(); ++i)
    if (history[i].ended >= since && is_counted(recovery, history, i)) ++count;
  return count;
}

std::chrono::milliseconds pause_of(const RecoveryConfig& recovery, const History& history,
                                   double chance) {
  if (history.back().failure == FailureClass::planned) return {};
  double pause = seconds(recovery.backoff);
  const double longest = seconds(recovery.backoff_max);
  // Doubled for each consecutive unhealthy attempt before the last one.
  for (std::size_t i = history.size() - 1; i > 0 && pause < longest; --i) {
    if (was_healthy(recovery, history[i]) || was_healthy(recovery, history[i - 1])) break;
    pause *= 2;
  }
  pause = std::min(pause, longest) * (0.75 + 0.5 * std::clamp(chance, 0.0, 1.0));
  return std::chrono::milliseconds(std::llround(1000 * std::min(pause, longest)));
}

/// Why an attempt with this end is not restarted; empty if it may be.
std::string reason_to_stop(const RecoveryConfig& recovery, const History& history) {
  const AttemptEnd& last = history.back();
  const FailureClass failure = class_of(history, history.size() - 1);
  const std::string_view name = failure_class_name(failure);
  if (failure == FailureClass::user) return "it was asked to end";
  if (recovery.max_restarts == 0) return "recovery.max_restarts is 0";
  if (failure == FailureClass::setup)
    return "no rank had run: a restart would fail in the same way";
  if (failure == FailureClass::planned) return {};
  if (last.rank_code && config::names_exit_code(recovery.stop_exit_codes, *last.rank_code))
    return fmt::format("exit code {} is one of recovery.stop_exit_codes", *last.rank_code);
  const bool asked_for =
      last.rank_code && config::names_exit_code(recovery.restart_exit_codes, *last.rank_code);
  if (!asked_for && !names_class(recovery.restart_on, failure))
    return fmt::format("failures of class {} are not in recovery.restart_on", name);
  return {};
}

}  // namespace

FailureClass class_of(const History& history, std::size_t attempt) {
  const FailureClass failure = history[attempt].failure;
  if (failure != FailureClass::setup) return failure;
  const auto before = history.begin() + static_cast<std::ptrdiff_t>(attempt);
  return std::any_of(history.begin(), before, [](const AttemptEnd& end) { return end.started; })
             ? FailureClass::hardware
             : failure;
}

std::size_t blames_of(const History& history, const std::string& host) {
  if (host.empty()) return 0;
  const auto follows_rank = [&](const AttemptEnd& end) {
    if (end.failure != FailureClass::software && end.failure != FailureClass::hang) return false;
    return std::ranges::any_of(history, [&](const AttemptEnd& other) {
      return end.rank && other.rank == end.rank && other.failure == end.failure &&
             !other.blamed_host.empty() && other.blamed_host != end.blamed_host;
    });
  };
  std::size_t count = 0;
  for (const AttemptEnd& end : history)
    if (end.blamed_host == host && !follows_rank(end)) ++count;
  return count;
}

std::size_t blames_left(const History& history, const std::string& host,
                        const std::map<std::string, std::size_t>& forgiven) {
  const std::size_t all = blames_of(history, host);
  const auto before = forgiven.find(host);
  return before == forgiven.end() ? all : all - std::min(all, before->second);
}

std::set<std::string> slow_hosts_of(const History& history) {
  std::set<std::string> out;
  for (const AttemptEnd& end : history) out.insert(end.slow_hosts.begin(), end.slow_hosts.end());
  return out;
}

std::int64_t without_progress(const RecoveryConfig& recovery, const History& history) {
  const bool told = std::ranges::any_of(
      history, [](const AttemptEnd& end) { return end.committed_step.has_value(); });
  std::uint64_t newest = history.front().begun_at_step.value_or(0);
  std::int64_t row = 0;
  for (const AttemptEnd& end : history) {
    const std::uint64_t step = end.committed_step.value_or(0);
    const bool further = told ? step > newest : was_healthy(recovery, end);
    newest = std::max(newest, step);
    if (further)
      row = 0;
    else if (end.started && end.failure != FailureClass::planned)
      ++row;
  }
  return row;
}

std::string ends_text(const History& history, std::size_t count) {
  std::string out;
  const std::size_t first = history.size() - std::min(count, history.size());
  for (std::size_t i = first; i < history.size(); ++i) {
    const AttemptEnd& end = history[i];
    const std::string step =
        end.committed_step ? fmt::format("step {}", *end.committed_step) : std::string("no step");
    out += fmt::format("{}  attempt {}: {}, {}, {} committed: {}", i == first ? "" : "\n",
                       end.attempt, failure_class_name(class_of(history, i)),
                       short_time(std::max(0.0, end.ended - end.begun)), step, end.cause);
  }
  return out;
}

Decision decide(const RecoveryConfig& recovery, const History& history, const HostPool& pool,
                double chance) {
  SORTIE_CHECK(!history.empty(), "a decision about no attempt");
  const AttemptEnd& last = history.back();
  Decision decision;
  decision.exit_code = last.exit_code;
  const auto stop = [&](std::string why) {
    decision.cordon = broken_hosts(recovery, history, pool);
    decision.reason = "stop: " + std::move(why);
    return decision;
  };
  if (last.exit_code == 0) return stop("every rank exited 0");
  if (std::string why = reason_to_stop(recovery, history); !why.empty())
    return stop(std::move(why));
  const std::int64_t row = without_progress(recovery, history);
  const bool planned = last.failure == FailureClass::planned;
  if (!planned && recovery.no_progress_limit > 0 && row >= recovery.no_progress_limit) {
    decision.no_progress = true;
    return stop(fmt::format(
        "{} attempts in a row committed no newer step (recovery.no_progress_limit)", row));
  }
  const bool counted = is_counted(recovery, history, history.size() - 1);
  const std::int64_t before = spent(recovery, history);
  if (counted && before >= recovery.max_restarts)
    return stop(fmt::format("{} restarts within {} are spent (recovery.max_restarts)", before,
                            short_time(seconds(recovery.restart_window))));
  Placement placement = place_hosts(recovery, history, pool);
  if (placement.hosts.empty()) return stop(std::move(placement.text));

  decision.action = Decision::Action::restart;
  decision.exit_code = 0;
  decision.hosts = std::move(placement.hosts);
  decision.replaced = std::move(placement.replaced);
  decision.cordon = std::move(placement.cordon);
  decision.pause = pause_of(recovery, history, chance);
  if (planned) {
    decision.reason = fmt::format("planned restart, not counted; {}",
                                  placement.text.empty() ? "same hosts" : placement.text);
    return decision;
  }
  decision.reason =
      fmt::format("restart after a failure of class {} ({}); {}; pause {:.1f} s",
                  failure_class_name(class_of(history, history.size() - 1)),
                  counted ? fmt::format("{} of {} within {}", before + 1, recovery.max_restarts,
                                        short_time(seconds(recovery.restart_window)))
                          : "not counted",
                  placement.text.empty() ? "same hosts" : placement.text, seconds(decision.pause));
  return decision;
}

}  // namespace sortie::launcher
