// DeviceWatch: what is in flight between GPUs, looked after by a thread, as the rank's own may wait
// in a call of the driver that only the end of a collective ends.
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
  /// What a failure was. A collective that is not done after `limit` in which no other was is one,
  /// 0 = no limit. `library` has made the groups, and outlives this.
  DeviceWatch(DeviceGroups& library, std::chrono::duration<double> limit);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  void add(DeviceGroup& group);
  void remove(DeviceGroup& group);
  /// `what` names collective and group.
  void started(const DeviceGroup& group, Event done, std::string what);

  /// What has failed; empty when nothing has. Who asks takes care of it: without anybody who asks
  /// within some seconds the thread throws it, which ends the process (loop/rank_end.h).
  std::string failure();
  /// Ends what is in flight of all groups, together.
  void abort_all();

 private:
  struct Flight {
    const DeviceGroup* group;
    Event done;
    std::string what;
  };
  void watch();
  /// Looks once; what is wrong.
  std::string look();

  DeviceGroups& library_;
  const std::chrono::duration<double> limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<DeviceGroup*> groups_;
  std::deque<Flight> flights_;
  std::chrono::steady_clock::time_point last_;  // that one was done, or the first began
  std::string failure_;
  bool noticed_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace sortie::trainer
