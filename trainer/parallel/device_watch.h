// DeviceWatch: a thread that monitors the collectives between GPUs of a rank. The rank's own thread
// may be blocked in a driver call that returns only when a collective ends. It also counts the
// collectives that the GPU has reached, which the rank's thread has begun long before.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trainer/parallel/device_group.h"

namespace sortie::trainer {

class DeviceWatch {
 public:
  /// Starts the thread. Collectives have failed if some are in flight and none completes for
  /// `limit`; 0 = no limit. `library` created the groups and must outlive this. `reached` is
  /// increased by 1 for each collective when the GPU gets to it.
  DeviceWatch(DeviceGroups& library, std::chrono::duration<double> limit,
              std::shared_ptr<std::atomic<std::uint64_t>> reached);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  void add(DeviceGroup& group);
  void remove(DeviceGroup& group);
  /// Registers a collective, or a message, which is not counted. The GPU has reached it when
  /// `ready` has passed, and completed it when `done` has. `what` names it and its group.
  enum class Kind : std::uint8_t { collective, message };
  void started(const DeviceGroup& group, Kind kind, Event ready, Event done, std::string what);
  /// Whether the GPU has waited for other ranks in a collective for at least this long. One that
  /// overlaps with work counts, too: it only lasts so long if another rank does not come.
  static constexpr std::chrono::seconds kLongWait{3};
  const std::atomic<bool>& waits() const { return waits_; }
  /// Counts a collective that is complete at once.
  void reached_one() { reached_->fetch_add(1, std::memory_order_relaxed); }

  /// Returns what has failed; empty if nothing has. The caller must handle the failure. If nothing
  /// calls this within a few seconds of a failure, the thread throws it, which ends the process
  /// (loop/rank_end.h).
  std::string failure();
  /// Aborts everything in flight in all groups, together.
  void abort_all();

 private:
  struct Flight {
    const DeviceGroup* group;
    bool counts;  // not counted yet
    Event ready, done;
    std::string what;
    std::chrono::steady_clock::time_point reached = std::chrono::steady_clock::time_point::max();
  };
  void watch();
  /// Counts the collectives that the GPU has reached. Requires mutex_.
  void count();
  void count(Flight& one);
  /// Checks everything once; returns what is wrong, else empty. Requires mutex_.
  std::string look();

  DeviceGroups& library_;
  const std::chrono::duration<double> limit_;
  const std::shared_ptr<std::atomic<std::uint64_t>> reached_;
  std::atomic<bool> waits_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<DeviceGroup*> groups_;
  std::deque<Flight> flights_;
  std::chrono::steady_clock::time_point last_;  // when one last completed, or the first began
  std::string failure_;
  bool noticed_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace sortie::trainer
