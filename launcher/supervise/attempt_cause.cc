// Attempt: finds the first cause (cause.h has the rule) and sweeps lost hosts (sweep.h).
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/asio/spawn.h"
#include "common/base/boot_clock.h"
#include "common/base/exit_code.h"
#include "common/base/quantity.h"
#include "launcher/run/successor.h"
#include "launcher/supervise/attempt.h"
#include "launcher/supervise/sweep.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using std::chrono::milliseconds;

namespace {
/// Processes at work on a lost host get at most the runner's own grace period for that case.
constexpr milliseconds kMostPatience{5000};
/// After this time of silence since the settlement, the attempt prints what it waits for.
constexpr milliseconds kSilence{200};
/// Interval of looks for hosts that are away, and the time for what a host reports when it is back.
constexpr milliseconds kLookForHosts{200};
}  // namespace

static Result<wire::Swept> not_looked() {
  return fail(ErrorCode::timeout,
              "the run folder does not say whether another supervisor has adopted the run");
}

Cause Attempt::cause_of_rank(std::uint32_t number, Cause::What what, int code) const {
  const Rank& rank = ranks_[number];
  Cause cause;
  cause.what = what;
  cause.host = hosts_[rank.host].plan->name;
  cause.rank = number;
  cause.pid = rank.pid;
  cause.code = code;
  cause.last_lines.assign(rank.last_lines.begin(), rank.last_lines.end());
  if (!rank.partial.empty()) cause.last_lines.push_back(rank.partial);
  cause.at_ms = boot_ms();
  return cause;
}

void Attempt::blame(Cause failure) {
  if (cause_ || superseded()) return;
  if (failure.at_ms == 0) failure.at_ms = boot_ms();
  failure.time_unix_ms = unix_time_ms() - (boot_ms() - failure.at_ms);
  // MPI_Abort and a failed start are followed by the end of the same rank, which is no new failure.
  const bool told = failure.rank && std::ranges::any_of(failures_, [&](const Cause& known) {
                      return known.rank == failure.rank;
                    });
  const bool first = failures_.empty();
  const bool final = is_wanted(failure.what) || failure.what == Cause::What::unreachable;
  if (told || (final && !first)) return;
  failures_.push_back(std::move(failure));
  if (!first) return;
  const std::string reason = cause_text(failures_.front());
  stop_all(static_cast<std::uint32_t>(job_.runner.grace.count()),
           reason.substr(0, reason.find('\n')));
  if (final)
    settle();
  else
    await_settlement();
}

void Attempt::await_settlement() {
  settle_latest_ = std::chrono::steady_clock::now() + kMostSettleTime;
  settle_timer_.set(kSettleTime, [this] { settle_unless_away(); });
}

/// A host whose connection is broken may be lost, and may have been the first to fail.
void Attempt::settle_unless_away() {
  const auto now = std::chrono::steady_clock::now();
  const bool away = std::ranges::any_of(hosts_, [now](const Host& host) {
    return host.way_back || now - host.restored_at < kLookForHosts;
  });
  if (!away || now >= settle_latest_) return settle();
  settle_timer_.set(kLookForHosts, [this] { settle_unless_away(); });
}

void Attempt::settle() {
  if (failures_.empty() || cause_ || superseded()) return;
  cause_ = failures_[first_cause(failures_)];
  parts_.folder.event(JournalEvent::cause, cause_json(*cause_));
  for (HeldEvent& event : std::exchange(held_, {})) note_exited(std::move(event));
  settle_timer_.set(kSilence, [this] { say_what_is_awaited(); });
}

void Attempt::say_what_is_awaited() {
  if (ended_ || running_ == 0 || is_wanted(cause_->what)) return;
  const std::string text = cause_text(*cause_);
  parts_.console.message(
      fmt::format("{}; stopping the other ranks (TERM, then KILL after {:.3g} s)",
                  text.substr(0, text.find('\n')), static_cast<double>(grace_ms_) / 1000));
}

/// Writes the end of a rank to the journal, as cause or consequence. Until the cause is settled (at
/// most kSettleTime) the event is held back.
void Attempt::note_exited(HeldEvent event) {
  if (failing() && !cause_) {
    held_.push_back(std::move(event));
    return;
  }
  event.fields["consequence"] = cause_ && event.failed && cause_->rank != event.rank;
  parts_.folder.event(JournalEvent::rank_exited, event.fields);
}

Verdict Attempt::make_verdict() const {
  Verdict verdict;
  if (superseded_) {
    verdict.adopted = true;
    verdict.exit_code = kExitAdopted;
    verdict.text =
        "this run was adopted by another supervisor (`sortie attach --adopt`); this one leaves it "
        "alone";
    return verdict;
  }
  if (!cause_) return verdict;
  // All ranks completed before the order to stop arrived.
  const bool done = std::ranges::all_of(
      ranks_, [](const Rank& rank) { return rank.status && rank.status->success(); });
  if (cause_->what == Cause::What::planned && done) return verdict;
  verdict.exit_code = cause_->exit_code;
  verdict.text = cause_text(*cause_);
  verdict.shown = cause_->shown;
  Aftermath aftermath;
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto& status = ranks_[rank].status;
    if (cause_->rank == rank || !status || status->success()) continue;
    const bool exited = status->kind == ProcessStatus::Kind::exited;
    aftermath.add((exited ? "with " : "by ") + status->to_string());
  }
  verdict.ended_after = aftermath.count();
  verdict.aftermath = aftermath.text();
  return verdict;
}

void Attempt::start_sweep(Host& host) {
  ++sweeps_;
  host.sweeping = true;
  spawn(parts_.executor, sweep(host));
}

asio::awaitable<void> Attempt::sweep(Host& host) {
  // If another supervisor has adopted the run meanwhile, this one must not kill its ranks.
  std::optional<bool> successor = false;
  const bool adoptable = hold_.count() > 0 || job_.recovery.max_restarts > 0;
  if (adoptable) successor = co_await has_successor(parts_.executor, parts_.folder);
  if (successor.value_or(true)) {
    if (!superseded()) note_swept(host, not_looked());
    host.sweeping = false;
    --sweeps_;
    wake();
    co_return;
  }
  SweepOrder order;
  order.host = host.plan->name;
  order.run_id = parts_.folder.id();
  order.patience = std::min(milliseconds(job_.runner.grace), kMostPatience) + milliseconds(1000);
  order.reach = parts_.sweep_reach;
  order.cgroup = host.cgroup;
  if (plan_.container) order.engine = plan_.container->engine;
  auto outcome = co_await sweep_host(parts_.executor, parts_.transport, parts_.binary, job_.runner,
                                     std::move(order));
  note_swept(host, outcome);
  --sweeps_;
  wake();
}

/// Reports the first result of a sweep; an interrupt may have come before it.
void Attempt::note_swept(Host& host, const Result<wire::Swept>& outcome) {
  if (!std::exchange(host.sweeping, false)) return;
  const std::string& name = host.plan->name;
  if (!outcome) {
    parts_.folder.event(JournalEvent::unconfirmed,
                        {{"host", name}, {"why", outcome.error().message}});
    const std::string held =
        hold_.count() == 0 ? ""
                           : fmt::format("after a hold of {} (runner.on_launcher_loss), ",
                                         short_time(static_cast<double>(hold_.count()) / 1000));
    parts_.console.error(
        fmt::format("{}: cleanup is not confirmed: {}; a runner that is alive ends "
                    "its ranks by itself {}within runner.heartbeat_timeout and grace",
                    name, outcome.error().message, held));
    return;
  }
  parts_.folder.event(JournalEvent::swept,
                      {{"host", name}, {"killed", outcome->killed}, {"left", outcome->left}});
  host.clear = outcome->left.empty();
  for (const std::string& left : outcome->left) {
    parts_.folder.event(JournalEvent::unconfirmed, {{"host", name}, {"why", left}});
    parts_.console.error(fmt::format("{}: could not be killed: {}", name, printable(left)));
  }
}

}  // namespace sortie::launcher
