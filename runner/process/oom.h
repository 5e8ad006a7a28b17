// Whether the OOM killer ended a rank. Proof: the rank's own cgroup, where the runner was given the
// memory controller of cgroup v2. Otherwise evidence: the counters of the groups above it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace sortie::runner::oom {

/// Values of RankExited::oom_killed.
enum class Evidence : std::uint32_t { none = 0, rank = 1, host = 2 };

/// Numbers of OOM kills so far in the groups of this process and on the whole host: from the
/// nearest cgroup v2 that counts them (memory.events), from its memory group of cgroup v1
/// (memory.oom_control), and from the kernel (/proc/vmstat). `root` is prepended to every path, for
/// tests.
struct Counters {
  std::optional<std::uint64_t> group_v2, group_v1;  // nullopt: no group counts
  std::uint64_t host = 0;                           // 0 if the kernel does not count
  static Counters read(const std::string& root = "");
  bool groups_rose_since(const Counters& before) const;
  bool rose_since(const Counters& before) const;
  /// Whether there is evidence of a kill in these groups. If a group counts, kills elsewhere on the
  /// host are ignored.
  bool killed_here_since(const Counters& before) const;
};

/// Number of processes of this cgroup v2 that the OOM killer ended; 0 if that is not counted.
std::uint64_t kills_in(const std::string& folder);

/// Interval at which the counters are sampled. A counter that rose more than one to two intervals
/// before a death is no evidence: a helper of the rank that was killed and replaced long ago did
/// not end the rank.
inline constexpr std::chrono::minutes kTick{1};

/// A counter and its value one to two ticks ago, or at the beginning.
class Before {
 public:
  explicit Before(std::uint64_t now = 0) : before_(now), latest_(now) {}
  /// Call after each kTick.
  void tick(std::uint64_t now) { before_ = std::exchange(latest_, now); }
  bool rose(std::uint64_t now) const { return now > before_; }

 private:
  std::uint64_t before_, latest_;
};

/// Memory group of another process, such as a container: its recent kills, which can be read even
/// after the process is gone, and its limit.
class Group {
 public:
  explicit Group(pid_t pid, const std::string& root = "");
  /// Call after each kTick.
  void tick() { kills_.tick(kills()); }
  bool has_killed() const { return kills_.rose(kills()); }
  /// Bytes; 0 = no limit, or unknown.
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
  /// `folder`: the cgroup v2 of this rank alone, in which nothing was killed yet; empty = none.
  void follow(std::string folder) { own_ = std::move(folder); }
  /// Call after each kTick.
  void tick();
  /// Proof: the OOM killer was active in the rank's own cgroup.
  bool own_rose() const;
  /// Evidence: it was active in one of the groups above.
  bool rose() const { return Counters::read().killed_here_since(before_); }

 private:
  Counters before_, latest_;
  std::string own_;
  Before own_kills_;
};

}  // namespace sortie::runner::oom
