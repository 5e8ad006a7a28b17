// Watchdog: detects hanging ranks and slow hosts from the heartbeats of the hosts. Pure: the caller
// passes the time.
//
// A rank hangs if its reported progress has not changed for longer than the limit of its section.
// In sections where ranks wait for each other (reduce, evaluate, save, done) a rank without
// progress may only be waiting. There it is a hang if all ranks of the job are without progress,
// each for longer than its limit. Times are measured by the runners, so that time in which the
// launcher was stopped or its machine slept does not count. Old reports are not judged either, as
// while a host is being reconnected.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/config/schema.h"
#include "common/wire/message.h"
#include "launcher/watchdog/standing_times.h"
#include "launcher/watchdog/stragglers.h"

namespace sortie::launcher {

/// If a timer fires this late, the launcher did not run in between.
inline constexpr std::chrono::milliseconds kNotRunning{1000};

/// Ranks without progress.
struct Hang {
  std::vector<std::uint32_t> ranks;   // all ranks without progress, ascending
  std::vector<std::uint32_t> behind;  // those that the others seem to wait for; may be all
  /// The host of the ranks in `behind`, if they share one. The hang is blamed on it.
  std::optional<std::size_t> host;
  wire::RankProgress where;            // the first rank of `behind`
  std::chrono::milliseconds limit{0};  // limit that was exceeded
  std::string why;                     // why `behind` was chosen, as the end of a sentence
};

class Watchdog {
 public:
  using Clock = std::chrono::steady_clock;
  /// Minimum limit as a multiple of hang_minimum, for sections without history and for sections
  /// whose duration depends on more than the step (evaluate, save, done, and step of programs
  /// without sections).
  static constexpr int kPatience = 10;
  static constexpr int kTimesP99 = 5;
  static constexpr std::chrono::seconds kWindow{10};  // for stragglers

  /// `host_of`: rank -> host. `heartbeat`: interval of the heartbeats.
  Watchdog(const config::WatchdogConfig& config, std::chrono::milliseconds heartbeat,
           std::vector<std::size_t> host_of);

  void rank_started(std::uint32_t rank, Clock::time_point now);
  void rank_ended(std::uint32_t rank);
  /// Handles a heartbeat of `host`. Ranks that are not on that host are ignored.
  void heard(std::size_t host, std::span<const wire::RankProgress> told, Clock::time_point now);

  /// Checks for a hang. Must be called about every kTick.
  static constexpr std::chrono::milliseconds kTick{500};
  std::optional<Hang> look(Clock::time_point now);
  /// Returns the hosts found to be slow since the last call. Must be called as often as look().
  std::vector<Straggler> take_stragglers(Clock::time_point now);

  /// Last reported progress of a rank; nullptr if it has reported none or has ended.
  const wire::RankProgress* place(std::uint32_t rank) const;
  /// Limit for the time without progress in this section, after the exempt steps; zero = no limit.
  std::chrono::milliseconds limit(training::Section section) const;

 private:
  struct Rank {
    bool running = false, told = false;
    Clock::time_point started{};
    std::uint64_t first_step = 0;  // first reported step; 0 = none
    wire::RankProgress last;
  };
  struct Host {
    Clock::time_point heard{};
  };
  bool is_exempt(const Rank& rank) const;
  bool news_are_fresh(Clock::time_point now) const;
  std::optional<std::chrono::milliseconds> passed_limit(Clock::time_point now) const;
  std::optional<Hang> late_start(Clock::time_point now) const;
  Hang describe(std::chrono::milliseconds limit) const;
  void find_behind(Hang& hang) const;
  void find_host(Hang& hang) const;

  const config::WatchdogConfig config_;
  const std::chrono::milliseconds heartbeat_;
  const std::vector<std::size_t> host_of_;
  std::vector<Rank> ranks_;
  std::vector<Host> hosts_;
  StandingTimes times_;
  Stragglers stragglers_;
  Clock::time_point last_look_{}, window_begin_{};
  std::uint64_t window_step_ = 0;
};

/// Describes a hang for the user: "rank 3 on h02 makes no progress: step 12, forward, for 65.0 s
/// (limit 60 s); ...". `host_name`: host of hang.where.rank.
std::string hang_text(const Hang& hang, const std::string& host_name, std::size_t world_size);

}  // namespace sortie::launcher
