// The watchdog of a simulated job, with a simulated clock.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "launcher/watchdog/watchdog.h"

namespace sortie::test {

/// Ranks of a job and the runners of their hosts, with a simulated clock. A rank makes progress
/// only through go().
class Simulation {
 public:
  using WatchClock = launcher::Watchdog::Clock;
  using milliseconds = std::chrono::milliseconds;
  using seconds = std::chrono::seconds;
  using Section = training::Section;
  static constexpr milliseconds kBeat{2000};

  Simulation(const config::WatchdogConfig& config, std::size_t hosts, std::size_t per_host)
      : per_host_(per_host),
        ranks_(hosts * per_host),
        silent_hosts_(hosts),
        watchdog_(config, kBeat, host_of(hosts, per_host)) {
    for (std::uint32_t i = 0; i < ranks_.size(); ++i) watchdog_.rank_started(i, now_);
  }

  struct Place {
    wire::RankProgress told;
    WatchClock::time_point changed{}, heard{};
    milliseconds longest{0};
    Section longest_section = Section::start;
    bool stopped = false;  // SIGSTOP: it sends nothing
    bool tells = true, ended = false;
  };

  void go(std::uint32_t rank, std::uint64_t step, Section section, std::uint64_t sequence = 0) {
    Place& place = ranks_[rank];
    note_longest(place);
    place.told.step = step;
    place.told.section = static_cast<std::uint8_t>(section);
    place.told.sequence = sequence;
    place.changed = place.heard = now_;
  }
  void go_all(std::uint64_t step, Section section, std::uint64_t sequence = 0) {
    for (std::uint32_t i = 0; i < ranks_.size(); ++i) go(i, step, section, sequence);
  }
  Place& rank(std::uint32_t number) { return ranks_[number]; }
  void end(std::uint32_t number) {
    ranks_[number].ended = true;
    watchdog_.rank_ended(number);
  }
  void silence(std::size_t host, bool silent) { silent_hosts_[host] = silent; }

  /// Lets `time` pass. Heartbeats arrive, and the watchdog looks. Returns at the first hang.
  std::optional<launcher::Hang> pass(milliseconds time,
                                     milliseconds tick = launcher::Watchdog::kTick) {
    for (const auto until = now_ + time; now_ < until;) {
      now_ += tick;
      for (Place& place : ranks_)
        if (!place.stopped) place.heard = std::max(place.heard, now_ - seconds(1));
      if (now_ - last_beat_ >= kBeat) beat();
      if (auto hang = watchdog_.look(now_)) return hang;
    }
    return std::nullopt;
  }
  /// The launcher does not run for `time`. The hosts do, and their heartbeats wait for it.
  void launcher_sleeps(milliseconds time) { now_ += time; }
  void beat() {
    last_beat_ = now_;
    for (std::size_t host = 0; host < silent_hosts_.size(); ++host) {
      std::vector<wire::RankProgress> told;
      for (std::uint32_t i = 0; i < ranks_.size(); ++i) {
        Place& place = ranks_[i];
        if (i / per_host_ != host || place.ended || !place.tells) continue;
        wire::RankProgress news = place.told;
        news.rank = i;
        news.standing_ms = count(now_ - place.changed);
        news.silent_ms = count(now_ - place.heard);
        news.longest_ms = static_cast<std::uint32_t>(place.longest.count());
        news.longest_section = static_cast<std::uint8_t>(place.longest_section);
        place.longest = milliseconds(0);
        told.push_back(news);
      }
      if (!silent_hosts_[host]) watchdog_.heard(host, told, now_);
    }
  }

  launcher::Watchdog& watchdog() { return watchdog_; }
  WatchClock::time_point now() const { return now_; }

 private:
  static std::vector<std::size_t> host_of(std::size_t hosts, std::size_t per_host) {
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < hosts * per_host; ++i) out.push_back(i / per_host);
    return out;
  }
  static std::uint32_t count(WatchClock::duration time) {
    return static_cast<std::uint32_t>(std::chrono::duration_cast<milliseconds>(time).count());
  }
  void note_longest(Place& place) {
    const auto stood = std::chrono::duration_cast<milliseconds>(now_ - place.changed);
    if (place.changed == WatchClock::time_point{} || stood <= place.longest) return;
    place.longest = stood;
    place.longest_section = static_cast<Section>(place.told.section);
  }

  std::size_t per_host_;
  WatchClock::time_point now_{std::chrono::hours(1)}, last_beat_{};
  std::vector<Place> ranks_;
  std::vector<bool> silent_hosts_;
  launcher::Watchdog watchdog_;
};

inline config::WatchdogConfig five_seconds() {
  config::WatchdogConfig config;
  config.hang_timeout = std::chrono::seconds(5);
  return config;
}

/// Runs steps of about a second, until the limits of the sections are learned.
inline void train(Simulation& job, std::uint64_t from, std::uint64_t to) {
  for (std::uint64_t step = from; step <= to; ++step)
    for (const auto section : {training::Section::data, training::Section::forward,
                               training::Section::backward, training::Section::reduce}) {
      job.go_all(step, section, step);
      constexpr std::chrono::milliseconds kQuarter{250};
      REQUIRE_FALSE(job.pass(kQuarter, kQuarter));
    }
}

}  // namespace sortie::test
