// DeviceWatch: a thread that monitors the collectives between GPUs of a rank. The rank's own thread
// may be blocked in a driver call that returns only when a collective ends.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trainer/parallel/device_group.h"

namespace sortie::trainer {

class DeviceWatch {
 public:
  /// Starts the thread. Collectives have failed if some are in flight and none completes for
  /// `limit`; 0 = no limit. `library` created the groups and must outlive this.
  DeviceWatch(DeviceGroups& library, std::chrono::duration<double> limit);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  void add(DeviceGroup& group);
  void remove(DeviceGroup& group);
  /// Registers a collective. `done` passes when it is complete; `what` names the collective and its
  /// group.
  void started(const DeviceGroup& group, Event done, std::string what);

  /// Returns what has failed; empty if nothing has. The caller must handle the failure. If nothing
  /// calls this within a few seconds of a failure, the thread throws it, which ends the process
  /// (loop/rank_end.h).
  std::string failure();
  /// Aborts everything in flight in all groups, together.
  void abort_all();

 private:
  struct Flight {
    const DeviceGroup* group;
    Event done;
    std::string what;
  };
  void watch();
  /// Checks everything once; returns what is wrong, else empty. Requires mutex_.
  std::string look();

  DeviceGroups& library_;
  const std::chrono::duration<double> limit_;
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
