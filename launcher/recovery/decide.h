// What to do after an attempt has ended: a pure function of its end, of what ended before it, and
// of [recovery]. The loop of a run (launcher/run) carries out the answer; nothing here waits, reads
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
  FailureClass failure = FailureClass::app;  // of the first cause; no meaning with exit_code 0
  std::string cause;                         // in one line
  std::optional<std::uint32_t> rank;         // that was the first cause; none = no rank
  std::optional<int> rank_code;              // of that rank: its exit code, 128 + N for a signal
  /// The host that evidence blames: the first cause came from it and is not of a kind that peers
  /// cause in each other (a lost connection of a collective, a time-out). Empty = nobody.
  std::string blamed_host;
  /// The host can not be used for the next attempt: lost, and not swept; or it reported a fault.
  std::set<std::string> unusable_hosts;
  /// The blamed host reported a fault that a person has to mend: it is cordoned without a second
  /// blame.
  bool broken = false;
  /// Hosts that were named as slow in it and are to leave the run for spares (slow_swaps).
  std::set<std::string> slow_hosts;
  std::optional<std::uint64_t> committed_step;  // newest that is known to be committed
  /// Where this run began, of its first attempt: a checkpoint of an earlier run. None = step 0.
  std::optional<std::uint64_t> begun_at_step;
  std::optional<std::uint64_t> reached_step;  // the last one that is known to be done
  bool started = false;                       // ranks had run
  double begun = 0, ended = 0;                // seconds since 1970
};

/// The end of an attempt by its first cause: class, code, text, rank and blame. The caller fills in
/// the rest: hosts that can not be used, steps, times. `exit_code` is that of the run.
AttemptEnd end_of(std::uint32_t attempt, const Cause& cause);

/// What is known of hosts when a decision is made.
struct HostPool {
  std::vector<std::string> hosts;   // of the attempt that ended, in rank order
  std::vector<std::string> spares;  // that are free, in the order of recovery.spares
  std::set<std::string> cordoned;   // by anybody
  bool breaker_open = false;        // too many cordons lately: no further ones
  /// Hosts of the job as configured, in rank order; empty = no host is taken in again.
  std::vector<std::string> places;
  /// Hosts and spares that this run had to leave, and that were checked and found fit since.
  std::set<std::string> fit;
  /// Hosts that failures of recovery.cordon_runs runs within blame_window speak against.
  std::set<std::string> chronic;
  /// Blames in this run that no longer count, by host: a person has uncordoned it since.
  std::map<std::string, std::size_t> forgiven;
  /// Of hosts, places and spares; one that is not named has as many as any. A spare needs as many
  /// as the host that it replaces.
  std::map<std::string, std::size_t> slots;
  /// Whether the job can go on with exactly these of `hosts`, the global batch as configured
  /// (shrink.h), or of `places`; asked of a spare by the name of the host whose place it takes.
  /// Empty = with any.
  std::function<bool(const std::vector<std::string>&)> legal;
};

struct Decision {
  enum class Action { restart, stop };
  Action action = Action::stop;
  /// Of the next attempt, in rank order: the same, with spares in the places of hosts, fewer, or
  /// more again.
  std::vector<std::string> hosts;
  std::map<std::string, std::string> replaced;  // by spare: the host whose place it takes
  std::chrono::milliseconds pause{0};           // before it, jitter included
  std::vector<std::string> cordon;              // hosts to cordon now
  /// One line for a person and the journal: what was decided by which rule.
  std::string reason;
  int exit_code = 0;         // when it stops: of the last attempt's first cause
  bool no_progress = false;  // it stops because of no_progress_limit, with a code of its own
};

/// The class that counts: a restart that could not be set up, where ranks had run before, is a
/// matter of the hosts (hardware), not of the job.
FailureClass class_of(const std::vector<AttemptEnd>& history, std::size_t attempt);

/// How often evidence speaks against a host. What follows a rank from host to host is the program's
/// and does not count.
std::size_t blames_of(const std::vector<AttemptEnd>& history, const std::string& host);
/// The same without those that are forgiven (HostPool::forgiven).
std::size_t blames_left(const std::vector<AttemptEnd>& history, const std::string& host,
                        const std::map<std::string, std::size_t>& forgiven);

/// Blames from which on a host is replaced where it can be.
inline constexpr std::size_t kBlamesOfASickHost = 2;

/// Hosts that have left the run for being slow; none of them comes back.
std::set<std::string> slow_hosts_of(const std::vector<AttemptEnd>& history);

/// Attempts in a row, up to the last one, that ran ranks and ended without a newer committed step
/// than any before. Of a program that never told of a step, one that lasted healthy_after did.
std::int64_t without_progress(const config::RecoveryConfig& recovery,
                              const std::vector<AttemptEnd>& history);

/// The ends of the last `count` attempts below each other: class, how long, step, first cause.
std::string ends_text(const std::vector<AttemptEnd>& history, std::size_t count);

/// `history`: all attempts of the run in order, the last one is the one that has ended; not empty.
/// `chance` in [0, 1): jitter of the pause. Rules and their order: README.md.
Decision decide(const config::RecoveryConfig& recovery, const std::vector<AttemptEnd>& history,
                const HostPool& pool, double chance);

}  // namespace sortie::launcher
