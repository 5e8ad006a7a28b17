// DeviceWatch: a thread that monitors the collectives between GPUs of a rank. The rank's own thread
// may be blocked in a driver call that returns only when a collective ends. It also counts the
// collectives that the GPU has reached, which the rank's thread has begun long before. When one
// makes no progress it asks the other ranks where they are, and answers such questions.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trainer/parallel/device_group.h"
#include "trainer/parallel/engine.h"
#include "trainer/parallel/peer_inquiry.h"
#include "trainer/parallel/wait_question.h"

namespace sortie::trainer {

/// What the watch knows of this rank and of the run, to ask and to answer.
struct WatchedRank {
  int rank = 0;                                   // of the run
  RunPlace place = {};                            // of the rank
  std::vector<std::string> hosts = {};            // by rank of the run; empty = unknown
  std::shared_ptr<const LongWait> waits_in = {};  // of its thread, outside of GPUs; or nullptr
};

class DeviceWatch {
 public:
  /// Starts the thread. Collectives have failed if some are in flight and none completes for
  /// `limit`; 0 = no limit. `library` created the groups and must outlive this. `reached` is
  /// increased by 1 for each collective when the GPU gets to it.
  DeviceWatch(DeviceGroups& library, std::chrono::duration<double> limit,
              std::shared_ptr<std::atomic<std::uint64_t>> reached, WatchedRank rank = {});
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  void add(DeviceGroup& group, const GroupRanks& ranks);
  void remove(DeviceGroup& group);
  /// The rank's thread is in a call that `what` names until call_ended() or started(): ranks
  /// connect in it. `collective` is the one that it begins, if any.
  void call_began(std::string what, std::optional<CollectiveName> collective = {});
  void call_ended();
  /// Registers a collective, or a message, which is not counted. The GPU has reached it when
  /// `ready` has passed, and completed it when `done` has.
  void started(const DeviceGroup& group, CollectiveName name, Event ready, Event done);
  /// Whether the GPU has waited for other ranks in a collective for at least this long. One that
  /// overlaps with work counts, too: it only lasts so long if another rank does not come.
  static constexpr std::chrono::seconds kLongWait{3};
  const std::atomic<bool>& waits() const { return waits_; }
  /// Counts a collective that is complete at once: number `number` of the group.
  void passed(const DeviceGroup& group, std::uint64_t number);

  /// Returns what has failed; empty if nothing has. The caller must handle the failure. If nothing
  /// calls this within a few seconds of a failure, the thread throws it, which ends the process
  /// (loop/rank_end.h).
  std::string failure();
  /// Asks the other ranks about a collective that makes no progress, or has `failed`. `members`:
  /// the ranks of the run in its group. Returns which are missing and what to do; "" if nothing can
  /// be found out. Blocks for a few seconds at most. Thread-safe.
  std::string ask_others(const std::vector<int>& members, const CollectiveName& collective,
                         bool failed);
  /// Aborts everything in flight in all groups, together.
  void abort_all();

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Flight {
    const DeviceGroup* group;
    bool counts;  // not counted yet
    Event ready, done;
    CollectiveName name;
    Time reached = Time::max();

    bool at_gpu() const { return reached != Time::max() || ready.poll(); }
  };
  struct Member {
    DeviceGroup* group;
    GroupRanks ranks;
    std::uint64_t next = 0;  // above the numbers of the collectives that this rank has begun
  };
  struct Call {
    std::string what;
    std::optional<CollectiveName> collective;
  };
  /// What is wrong with a collective of a group of `members`, or with the group.
  struct Trouble {
    std::vector<int> members;
    std::optional<CollectiveName> collective;
    std::string problem;  // of the library; "" = no progress
  };
  void watch();
  /// Counts the collectives that the GPU has reached. Requires mutex_.
  void count();
  void count(Flight& one);
  void reached_one() { reached_->fetch_add(1, std::memory_order_relaxed); }
  /// Checks everything once; returns what is wrong. Requires mutex_.
  std::optional<Trouble> look();
  /// Returns the message of the failure; asks the other ranks.
  std::string described(const Trouble& trouble);
  Member* member(const DeviceGroup& group);
  /// Answers another rank. Waits a second at most for a watch that is blocked.
  WaitAnswer answer(const WaitQuestion& question);
  /// Where this rank is, as seen from a collective. Requires mutex_.
  WaitAnswer place_of(const CollectiveName& asked);

  DeviceGroups& library_;
  const std::chrono::duration<double> limit_;
  const std::shared_ptr<std::atomic<std::uint64_t>> reached_;
  std::atomic<bool> waits_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  const WatchedRank rank_;
  std::vector<Member> groups_;
  std::deque<Flight> flights_;
  std::optional<Call> call_;
  Time last_;  // when one last completed, or the first began
  std::string failure_;
  bool noticed_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace sortie::trainer
