// Engine: all operations in flight of one rank, whatever their groups, over one transport.
//
// Nothing moves but in poll() and wait(), on the thread that calls them: MPI is initialised for one
// thread. Either moves every operation, so that two ranks that wait for two collectives in
// different orders do not wait for each other.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <vector>

#include "trainer/parallel/operation.h"

namespace sortie::trainer {

/// SORTIE_COMM_TIMEOUT, 0 = no limit; a value that is no number of seconds throws
/// CommunicatorError.
std::chrono::duration<double> communication_limit();

class Engine {
 public:
  /// Operations that start in order, a few at a time: what a slow link carries is better one whole
  /// result than halves of many, and each has scratch memory.
  struct Queue {
    std::size_t active = 3;
    std::deque<std::shared_ptr<Operation>> operations;
  };

  /// Reads SORTIE_COMM_TIMEOUT; a value that is no number of seconds throws CommunicatorError.
  explicit Engine(std::unique_ptr<Transport> transport);

  Transport& transport() { return *transport_; }
  void add(Queue& queue) { queues_.push_back(&queue); }
  void remove(Queue& queue);
  /// For operations that other messages can not be mistaken for.
  Queue& unordered() { return unordered_; }

  void start(Queue& queue, const std::shared_ptr<Operation>& operation);
  void poll();
  void wait(Operation& operation);
  /// Takes away an operation that is not done; its messages are withdrawn with it.
  void drop(const std::shared_ptr<Operation>& operation);
  /// An operation has failed: handles may go before they are done.
  bool broken() const { return broken_; }
  [[noreturn]] void fail_with(const std::string& message);
  void give_up_all() { broken_ = true; }

  /// Memory for what arrives before it is added up; kept from one operation to the next.
  using Scratch = std::unique_ptr<std::byte[]>;
  struct ScratchBlock {
    Scratch memory;
    std::size_t bytes = 0;
  };
  ScratchBlock take_scratch(std::size_t bytes);
  void give_scratch(ScratchBlock block);

  /// Collectives that were begun, by any group; for other threads to read.
  std::atomic<std::uint64_t> begun{0};

  /// The number of the next group, above all that this rank has been in.
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
  bool moving_ = false;  // an operation that asks for an event may get here again
};

/// An operation in an engine, and the tensors whose memory it needs. Done when it goes, unless an
/// exception takes it away.
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
