// Decides what to do after an attempt has ended: a pure function of this end, of the earlier ends,
// and of [recovery]. RunLoop (launcher/run) executes the decision; the code here never waits, reads
// a clock or touches a host.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/config/schema.h"
#include "launcher/recovery/failure_class.h"

namespace sortie::launcher {

/// How an attempt ended.
struct AttemptEnd {
  std::uint32_t attempt = 1;
  int exit_code = 0;                         // of the first cause; 0 = every rank exited 0
  FailureClass failure = FailureClass::app;  // of the first cause; meaningless if exit_code is 0
  std::string cause;                         // one line
  std::optional<std::uint32_t> rank;         // the rank that was the first cause; nullopt = no rank
  std::optional<int> rank_code;              // exit code of that rank, 128 + N for signal N
  /// The host that is blamed: the first cause came from it and is not of a kind that peers cause in
  /// each other (a lost connection of a collective, a timeout). Empty = no host.
  std::string blamed_host;
  /// Hosts that can not be used for the next attempt: they could not be prepared, were lost and not
  /// swept, or reported a fault that makes them unusable.
  std::set<std::string> unusable_hosts;
  /// The blamed host reported a fault that needs manual repair. It is cordoned without a second
  /// blame.
  bool broken = false;
  /// Hosts that were reported as slow in this attempt and will be replaced by spares (slow_swaps).
  std::set<std::string> slow_hosts;
  std::optional<std::uint64_t> committed_step;  // the newest step known to be committed
  /// Step at which the training of this attempt began. In the first attempt it is above 0 if the
  /// run resumed from a checkpoint of an earlier run. nullopt = unknown, counts as step 0.
  std::optional<std::uint64_t> begun_at_step;
  std::optional<std::uint64_t> reached_step;  // the last step known to be done
  bool started = false;                       // the order to start ranks was sent
  double begun = 0, ended = 0;                // seconds since 1970
};

/// Builds the end of an attempt from its first cause: class, exit code, text, rank and blamed host.
/// The caller fills in the rest: unusable hosts, steps, times. `exit_code` is the exit code of the
/// run.
AttemptEnd end_of(std::uint32_t attempt, const Cause& cause);

/// What is known about hosts when a decision is made.
struct HostPool {
  std::vector<std::string> hosts;   // hosts of the attempt that ended, in rank order
  std::vector<std::string> spares;  // free spares, in the order of recovery.spares
  std::set<std::string> cordoned;   // by any run or by the user
  bool breaker_open = false;        // too many recent cordons: no more are made
  /// Hosts of the job as configured, in rank order. Empty = no host rejoins the run.
  std::vector<std::string> places;
  /// Hosts and spares that this run had to leave and that have passed a check since.
  std::set<std::string> fit;
  /// Hosts that were blamed in recovery.cordon_runs runs within blame_window.
  std::set<std::string> chronic;
  /// By host: number of blames of this run that no longer count, because the user has uncordoned
  /// the host since.
  std::map<std::string, std::size_t> forgiven;
  /// Number of slots of hosts, places and spares. A host without an entry fits every place. A spare
  /// needs at least as many slots as the host that it replaces.
  std::map<std::string, std::size_t> slots;
  /// Returns whether the job can continue on exactly these names of `hosts` or `places`, with the
  /// configured global batch (shrink.h). A spare is passed under the name of the host that it
  /// replaces. An empty function = any set of hosts is legal.
  std::function<bool(const std::vector<std::string>&)> legal;
};

struct Decision {
  enum class Action { restart, stop };
  Action action = Action::stop;
  /// Hosts of the next attempt, in rank order: the same hosts, some replaced by spares, fewer, or
  /// more again.
  std::vector<std::string> hosts;
  std::map<std::string, std::string> replaced;  // spare -> the host that it replaces
  std::chrono::milliseconds pause{0};           // before the next attempt, jitter included
  std::vector<std::string> cordon;              // hosts to cordon now
  /// One line for the user and the journal: the decision and the rule behind it.
  std::string reason;
  int exit_code = 0;         // if it stops: that of the last attempt's first cause
  bool no_progress = false;  // it stops because of no_progress_limit: kExitNoProgress
};

/// Returns the failure class of history[attempt] that decisions use. A setup failure counts as
/// hardware if ranks ran in an earlier attempt: then a host failed, not the job.
FailureClass class_of(const std::vector<AttemptEnd>& history, std::size_t attempt);

/// Returns how often `host` was blamed. A failure that follows a rank from host to host is the
/// program's fault and does not count.
std::size_t blames_of(const std::vector<AttemptEnd>& history, const std::string& host);
/// Like blames_of(), without the forgiven blames (HostPool::forgiven).
std::size_t blames_left(const std::vector<AttemptEnd>& history, const std::string& host,
                        const std::map<std::string, std::size_t>& forgiven);

/// Number of blames from which on a host is replaced if possible.
inline constexpr std::size_t kBlamesOfASickHost = 2;

/// Hosts that left the run because they were slow. They never rejoin it.
std::set<std::string> slow_hosts_of(const std::vector<AttemptEnd>& history);

/// Returns the number of consecutive attempts, up to the last one, that ran ranks and committed no
/// newer step than all attempts before. Planned ends do not count. If no attempt reported a
/// committed step, an attempt that lasted healthy_after counts as progress.
std::int64_t without_progress(const config::RecoveryConfig& recovery,
                              const std::vector<AttemptEnd>& history);

/// Formats the ends of the last `count` attempts, one line each: class, duration, step, first
/// cause.
std::string ends_text(const std::vector<AttemptEnd>& history, std::size_t count);

/// Decides after the last attempt of `history`, which holds all attempts of the run in order and is
/// not empty. `chance` in [0, 1) is the jitter of the pause. README.md lists the rules in their
/// order.
Decision decide(const config::RecoveryConfig& recovery, const std::vector<AttemptEnd>& history,
                const HostPool& pool, double chance);

}  // namespace sortie::launcher
