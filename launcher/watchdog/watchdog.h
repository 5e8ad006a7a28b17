// Watchdog: finds ranks that make no progress any more, from what the heartbeats of their hosts
// say, and hosts that are slow. Pure: it is told the time.
//
// A rank hangs when nothing of what it tells has changed for longer than the limit of its section.
// Where ranks wait for each other (reduce, evaluate, save) one that stands still may only be
// waiting: that is a hang when all ranks of the job stand still, each for longer than its limit.
// Times are those of the runners: what a launcher that was stopped, or a machine that slept, did
// not hear is no hang; nor is anything judged by old news, as while a host is reconnected to.
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

/// A launcher whose timer is so late did not run meanwhile.
inline constexpr std::chrono::milliseconds kNotRunning{1000};

/// Ranks that make no progress.
struct Hang {
  std::vector<std::uint32_t> ranks;   // all that stand still, in order
  std::vector<std::uint32_t> behind;  // of them those that the others seem to wait for; may be all
  /// The host of those behind, where it is one: what the hang is blamed on.
  std::optional<std::size_t> host;
  wire::RankProgress where;            // the first rank of `behind`
  std::chrono::milliseconds limit{0};  // that was passed
  std::string why;                     // what speaks against `behind`, as the end of a sentence
};

class Watchdog {
 public:
  using Clock = std::chrono::steady_clock;
  /// For sections that have not been timed yet, and those whose length depends on more than the
  /// step (evaluate, save, and step of programs that know no sections), times hang_minimum.
  static constexpr int kPatience = 10;
  static constexpr int kTimesP99 = 5;
  static constexpr std::chrono::seconds kWindow{10};  // of stragglers

  /// `host_of`: of each rank. `heartbeat`: how often hosts tell.
  Watchdog(const config::WatchdogConfig& config, std::chrono::milliseconds heartbeat,
           std::vector<std::size_t> host_of);

  void rank_started(std::uint32_t rank, Clock::time_point now);
  void rank_ended(std::uint32_t rank);
  /// A heartbeat of `host` came. Of its ranks, those that it does not have are passed over.
  void heard(std::size_t host, std::span<const wire::RankProgress> told, Clock::time_point now);

  /// To be called about every kTick.
  static constexpr std::chrono::milliseconds kTick{500};
  std::optional<Hang> look(Clock::time_point now);
  /// Hosts that have turned out to be slow since the last call; to be called with look().
  std::vector<Straggler> take_stragglers(Clock::time_point now);

  /// What a rank has told last; nullptr = nothing yet, or it has ended.
  const wire::RankProgress* place(std::uint32_t rank) const;
  /// Longest time without a change for a rank in this section, past its exempt steps; zero = none.
  std::chrono::milliseconds limit(training::Section section) const;

 private:
  struct Rank {
    bool running = false, told = false;
    Clock::time_point started{};
    std::uint64_t first_step = 0;  // that it told of; 0 = none yet
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

/// "rank 3 on h02 stands still: forward of step 12, for 65 s (limit 60 s); ...": what a person is
/// told. `host_name`: of a rank.
std::string hang_text(const Hang& hang, const std::string& host_name, std::size_t world_size);

}  // namespace sortie::launcher
