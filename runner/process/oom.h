// Whether the OOM killer ended a rank: proof by the rank's own cgroup where the memory controller
// of cgroup v2 was given to us; else evidence, by the counters of what is above it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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

/// The memory group that another process is in, such as a container's: what it has counted since,
/// also after the process is gone, and what it may use at most.
class Group {
 public:
  explicit Group(pid_t pid, const std::string& root = "");
  /// Whether it has killed since the last time this was asked, or since the beginning.
  bool has_killed();
  /// In bytes; 0 = no limit, or not known.
  std::uint64_t limit() const;

 private:
  std::uint64_t kills() const;
  std::string v2_, v1_;  // folders, empty = none
  std::uint64_t seen_ = 0;
};

/// Remembers the counters of one to two minutes ago: what rose long before a death is no evidence.
class Watch {
 public:
  Watch() : before_(Counters::read()), latest_(before_) {}
  static constexpr std::chrono::minutes kTick{1};
  /// After each kTick.
  void tick();
  bool rose() const { return Counters::read().killed_here_since(before_); }

 private:
  Counters before_, latest_;
};

}  // namespace sortie::runner::oom
