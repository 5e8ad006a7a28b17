// Whether the OOM killer ended a rank: proof by the rank's own cgroup where the memory controller
// of cgroup v2 was given to us; else evidence, by the counters of what is above it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace sortie::runner::oom {

/// As RankExited::oom_killed has it.
enum class Evidence : std::uint32_t { none = 0, rank = 1, host = 2 };

/// OOM kills so far in the groups that this process is in, and on the whole host: of the nearest
/// cgroup v2 that counts (memory.events), of its memory group of cgroup v1 (memory.oom_control), of
/// the kernel (/proc/vmstat). `root` is put before every path, for tests.
struct Counters {
  std::optional<std::uint64_t> group_v2, group_v1;  // unset: no group counts
  std::uint64_t host = 0;                           // 0 where the kernel has none
  static Counters read(const std::string& root = "");
  bool groups_rose_since(const Counters& before) const;
  bool rose_since(const Counters& before) const;
  /// Evidence for the processes in these groups: where a group counts, kills elsewhere on the host
  /// are none.
  bool killed_here_since(const Counters& before) const;
};

/// Processes that the OOM killer ended in this group of cgroup v2; 0 where nothing counts.
std::uint64_t kills_in(const std::string& folder);

/// How often the counters are looked at. What rose more than one to two of these before a death is
/// no evidence: a helper of the rank that was killed and replaced long ago has not ended the rank.
inline constexpr std::chrono::minutes kTick{1};

/// A counter as it was one to two ticks ago, or at the beginning.
class Before {
 public:
  explicit Before(std::uint64_t now = 0) : before_(now), latest_(now) {}
  /// After each kTick.
  void tick(std::uint64_t now) { before_ = std::exchange(latest_, now); }
  bool rose(std::uint64_t now) const { return now > before_; }

 private:
  std::uint64_t before_, latest_;
};

/// The memory group that another process is in, such as a container's: what it has counted of late,
/// also after the process is gone, and what it may use at most.
class Group {
 public:
  explicit Group(pid_t pid, const std::string& root = "");
  /// After each kTick.
  void tick() { kills_.tick(kills()); }
  bool has_killed() const { return kills_.rose(kills()); }
  /// In bytes; 0 = no limit, or not known.
  std::uint64_t limit() const;

 private:
  std::uint64_t kills() const;
  std::string v2_, v1_;  // folders, empty = none
  Before kills_;
};

/// The groups that this process is in, and the own cgroup of the rank that it holds.
class Watch {
 public:
  Watch() : before_(Counters::read()), latest_(before_) {}
  /// `folder`: the cgroup v2 made for this rank alone, which has killed nobody yet; empty = none.
  void follow(std::string folder) { own_ = std::move(folder); }
  /// After each kTick.
  void tick();
  /// Proof: the rank's own cgroup has killed.
  bool own_rose() const;
  /// Evidence: one of the groups above it has.
  bool rose() const { return Counters::read().killed_here_since(before_); }

 private:
  Counters before_, latest_;
  std::string own_;
  Before own_kills_;
};

}  // namespace sortie::runner::oom
