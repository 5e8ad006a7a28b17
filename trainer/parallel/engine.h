// Engine: all operations in flight of one rank, of all its groups, over one transport.
//
// Operations make progress only in start(), poll() and wait(), on the calling thread: MPI is
// initialised for one thread. poll() and wait() advance every operation, so that two ranks that
// wait for two collectives in different orders do not deadlock.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "trainer/parallel/operation.h"

namespace sortie::trainer {

/// Value of SORTIE_COMM_TIMEOUT, 1800 s if unset; 0 = no limit. ErrorCode::config unless it is a
/// number of seconds up to a year.
Result<std::chrono::duration<double>> read_communication_limit();
/// The same; throws CommunicatorError.
std::chrono::duration<double> communication_limit();

/// The operation that the rank's thread has waited for in vain for a second, for other threads.
class LongWait {
 public:
  void set(std::string what) {
    const std::lock_guard lock(mutex_);
    what_ = std::move(what);
  }
  /// "barrier 12 of group world (4 ranks)"; "" if it does not wait for so long.
  std::string get() const {
    const std::lock_guard lock(mutex_);
    return what_;
  }

 private:
  mutable std::mutex mutex_;
  std::string what_;
};

class Engine {
 public:
  /// Operations that start in order, at most `active` at a time: over a slow link, one complete
  /// result is better than halves of many, and each operation uses scratch memory.
  struct Queue {
    std::size_t active = 3;
    std::deque<std::shared_ptr<Operation>> operations;
  };

  /// With several ranks, reads SORTIE_COMM_TIMEOUT; throws CommunicatorError if it is invalid.
  explicit Engine(std::unique_ptr<Transport> transport);

  Transport& transport() { return *transport_; }
  void add(Queue& queue) { queues_.push_back(&queue); }
  void remove(Queue& queue);
  /// For operations whose messages can not be confused with others; all of them are active.
  Queue& unordered() { return unordered_; }

  void start(Queue& queue, const std::shared_ptr<Operation>& operation);
  void poll();
  void wait(Operation& operation);
  /// Removes an unfinished operation. Its destructor withdraws its messages.
  void drop(const std::shared_ptr<Operation>& operation);
  /// Whether an operation has failed or give_up_all() was called. Handles may then be destroyed
  /// before they are done.
  bool broken() const { return broken_; }
  [[noreturn]] void fail_with(const std::string& message);
  void give_up_all() { broken_ = true; }

  /// Memory for received data until it is reduced; reused by later operations.
  using Scratch = std::unique_ptr<std::byte[]>;
  struct ScratchBlock {
    Scratch memory;
    std::size_t bytes = 0;
  };
  ScratchBlock take_scratch(std::size_t bytes);
  void give_scratch(ScratchBlock block);

  /// Number of collectives begun, over all groups. Other threads may read and increase it.
  const std::shared_ptr<std::atomic<std::uint64_t>> begun =
      std::make_shared<std::atomic<std::uint64_t>>(0);
  const std::shared_ptr<LongWait> long_wait = std::make_shared<LongWait>();
  /// Hosts of the ranks of the run, for messages; empty if unknown.
  std::vector<std::string> hosts;
  /// Host of a rank of the run, "" if unknown.
  std::string host_of(int rank) const {
    const auto number = static_cast<std::size_t>(rank);
    return number < hosts.size() ? hosts[number] : "";
  }

  /// Number of the next group: above those of all groups that this rank was in.
  int next_group = 1;

 private:
  void advance(Queue& queue);
  [[noreturn]] void give_up(Operation& operation, std::chrono::duration<double> idle);

  std::unique_ptr<Transport> transport_;
  std::chrono::duration<double> limit_{0};
  std::vector<Queue*> queues_;
  Queue unordered_;
  std::vector<ScratchBlock> scratch_;
  bool broken_ = false;
  bool moving_ = false;  // polling an event may run ops that call poll() again
};

/// An operation in an engine, and the tensors whose memory it uses. It must be done when this is
/// destroyed (checked), unless the stack is being unwound or the engine is broken.
class Flight final : public Awaited {
 public:
  Flight(std::shared_ptr<Engine> engine, std::shared_ptr<Operation> operation,
         std::vector<Tensor> kept = {})
      : engine_(std::move(engine)), operation_(std::move(operation)), kept_(std::move(kept)) {}
  ~Flight() override;
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;
  bool poll() override;
  void wait() override;

 private:
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Operation> operation_;
  std::vector<Tensor> kept_;
};

}  // namespace sortie::trainer
