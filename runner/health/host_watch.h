// What is left of a host: its clock, OOM kills where the kernel's log can not be read, the room in
// its folders.
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

/// Steps of the wall clock, against the clock that never jumps. Pure.
class ClockWatch {
 public:
  static constexpr double kStepSeconds = 1;
  /// Both in seconds, read one after the other.
  std::optional<Finding> look(double wall, double boot);

 private:
  std::optional<double> difference_;
};

/// OOM kills on this host and in the group that this process is in, by their counters.
class MemoryWatch {
 public:
  explicit MemoryWatch(std::string root) : root_(std::move(root)), last_(read()) {}
  std::optional<Finding> look();

 private:
  oom::Counters read() const { return oom::Counters::read(root_); }
  std::string root_;
  oom::Counters last_;
};

/// The room in one folder. Pure.
class RoomState {
 public:
  static constexpr std::uint64_t kLeastInodes = 1000;
  struct Room {
    std::uint64_t bytes = 0, all_bytes = 0;    // free, in all
    std::uint64_t inodes = 0, all_inodes = 0;  // the same; a file system may count none
  };
  /// Below `floor`, and below a twentieth of what a small file system has, it is nearly full.
  std::optional<Finding> look(const Room& room, std::uint64_t floor);

 private:
  bool told_ = false;
};

/// The thread that asks for it: a folder of a server that is away keeps it waiting for ever, which
/// the main thread then says.
class RoomWatch {
 public:
  static constexpr double kSilentSeconds = 60;

  /// Starts the thread, which ends with the process; `inbox` must live as long.
  RoomWatch(std::vector<std::string> folders, std::uint64_t floor, std::chrono::milliseconds tick,
            Inbox& inbox);
  /// A finding when a folder has not answered for too long; once, until it does.
  std::optional<Finding> silence(double now);

 private:
  void run();

  const std::vector<std::string> folders_;
  const std::uint64_t floor_;
  const std::chrono::milliseconds tick_;
  Inbox& inbox_;
  std::atomic<std::int64_t> asked_ms_ = 0;  // 0 = nothing is being asked
  std::atomic<std::size_t> folder_ = 0;     // that is being asked for
  bool silence_told_ = false;
};

}  // namespace sortie::runner::health
