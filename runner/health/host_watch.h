// The other watches of a host: its clock, OOM kills if the kernel log can not be read, and the free
// space of folders.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/health/finding.h"
#include "runner/health/inbox.h"
#include "runner/process/oom.h"

namespace sortie::runner::health {

/// Detects steps of the wall clock, relative to the boot clock, which never jumps. Pure.
class ClockWatch {
 public:
  static constexpr double kStepSeconds = 1;
  /// Both clocks in seconds, read one directly after the other.
  std::optional<Finding> look(double wall, double boot);

 private:
  std::optional<double> difference_;
};

/// Detects OOM kills on this host and in this process's memory groups, by their counters.
class MemoryWatch {
 public:
  explicit MemoryWatch(std::string root) : root_(std::move(root)), last_(read()) {}
  std::optional<Finding> look();

 private:
  oom::Counters read() const { return oom::Counters::read(root_); }
  std::string root_;
  oom::Counters last_;
};

/// Free space of one folder. Pure.
class RoomState {
 public:
  static constexpr std::uint64_t kLeastInodes = 1000;
  struct Room {
    std::uint64_t bytes = 0, all_bytes = 0;    // free, total
    std::uint64_t inodes = 0, all_inodes = 0;  // free, total; 0 if not counted
  };
  /// Returns a finding if less than `floor` bytes are free. On a small file system, the limit is a
  /// twentieth of its size. Also if hardly any inodes are free.
  std::optional<Finding> look(const Room& room, std::uint64_t floor);

 private:
  bool told_ = false;
};

/// The thread that reads the free space. A folder on an unreachable server blocks it forever; the
/// main thread reports that.
class RoomWatch {
 public:
  static constexpr double kSilentSeconds = 60;

  /// Starts the thread, which ends with the process. `inbox` and this object must live as long.
  RoomWatch(std::vector<std::string> folders, std::uint64_t floor, std::chrono::milliseconds tick,
            Inbox& inbox);
  /// Returns a finding if a folder has not answered for too long; once, until it answers.
  std::optional<Finding> silence(double now);

 private:
  void run();

  const std::vector<std::string> folders_;
  const std::uint64_t floor_;
  const std::chrono::milliseconds tick_;
  Inbox& inbox_;
  std::atomic<std::int64_t> asked_ms_ = 0;  // 0 = no request is pending
  std::atomic<std::size_t> folder_ = 0;     // index of the folder that is queried
  bool silence_told_ = false;
};

}  // namespace sortie::runner::health
