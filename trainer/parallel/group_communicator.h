// The communicator of every backend: collectives as operations over a transport.
#pragma once

#include <map>

#include "trainer/parallel/agreement.h"
#include "trainer/parallel/engine.h"
#include "trainer/parallel/exchange.h"
#include "trainer/parallel/late_operation.h"

namespace sortie::trainer {

class GroupCommunicator final : public Communicator {
 public:
  /// The group of all ranks of the transport. Reads SORTIE_COMM_DEBUG and SORTIE_COMM_TIMEOUT;
  /// throws CommunicatorError where they are not what they should be.
  explicit GroupCommunicator(std::unique_ptr<Transport> transport);
  ~GroupCommunicator() override;

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size(); }
  const std::string& name() const override { return group_.name; }
  std::string library() const override { return engine_->transport().library(); }

  Handle all_reduce_async(const Tensor& values, ReduceOp op, const Event& ready) override;
  Handle reduce_scatter_async(const Tensor& input, const Tensor& output, ReduceOp op,
                              const Event& ready) override;
  Handle all_gather_async(const Tensor& input, const Tensor& output, const Event& ready) override;
  Handle broadcast_async(const Tensor& values, int root, const Event& ready) override;
  Handle all_to_all_async(const Tensor& input, std::span<const std::int64_t> send_counts,
                          const Tensor& output, std::span<const std::int64_t> receive_counts,
                          const Event& ready) override;
  using Communicator::all_to_all_async;
  Handle send_async(const Tensor& values, int to, const Event& ready) override;
  Handle receive_async(const Tensor& values, int from, const Event& ready) override;
  void barrier() override;
  void poll() override { engine_->poll(); }
  const std::atomic<std::uint64_t>* begun() const override { return &engine_->begun; }
  std::unique_ptr<Communicator> split(int color, int key, std::string name) override;
  std::vector<std::string> all_gather(std::string_view text) override;
  using Communicator::all_gather;
  bool meet(std::chrono::milliseconds limit) override;
  void abort(int exit_code) override { engine_->transport().abort(exit_code); }

  // For a communicator that carries the values of some collectives another way.

  /// Begins a collective: its number, and in the debug mode the comparison with the other ranks.
  std::uint64_t begin(Collective collective, std::int64_t elements = 0, DType dtype = DType::u8,
                      int root = -1);
  /// The same of an all-to-all or an exchange; elements to and from each rank.
  std::uint64_t begin_exchange(Collective collective, DType dtype,
                               std::span<const std::int64_t> send_counts,
                               std::span<const std::int64_t> receive_counts);
  /// "all-reduce 17"
  std::string label(Collective collective, std::uint64_t sequence) const;
  /// Members that are known to be gone, and how: "rank 3: it has closed its connection"; else
  /// empty.
  std::string lost_members() const;
  /// From here on every collective throws CommunicatorError, and what is in flight may go.
  void give_up() { engine_->give_up_all(); }

 private:
  GroupCommunicator(std::shared_ptr<Engine> engine, GroupRanks group, int id, bool debug);
  /// Starts an operation; what it keeps alive goes with the handle.
  Handle start(std::shared_ptr<Operation> operation, std::vector<Tensor> kept);
  /// The same when `ready` has passed, on what may be a device's memory.
  Handle start_when(const Event& ready, const std::string& what, const Tensor& input,
                    const Tensor& output, const LateOperation::Make& make);
  /// Waits for an operation that no handle shows.
  void run(std::shared_ptr<Operation> operation);
  /// Blocks of bytes to and from all other members, waited for.
  void gather_bytes(std::span<const std::byte> mine, std::span<const std::span<std::byte>> others,
                    Part part, std::uint64_t sequence, std::string what);
  enum class Direction : std::uint8_t { send, receive };
  Handle pair(const Tensor& values, int member, Direction direction, const Event& ready);
  void compare_counts(Collective collective, std::span<const std::int64_t> send_counts,
                      std::span<const std::int64_t> receive_counts);
  /// Of a rank alone, whose result is its input's memory.
  bool is_there(const Tensor& input, const Tensor& output) const {
    return size() == 1 && input.raw() == output.raw();
  }

  std::shared_ptr<Engine> engine_;
  const GroupRanks group_;
  const int id_;
  const bool debug_;
  std::uint64_t sequence_ = 0;
  Engine::Queue queue_;
  /// The last message to or from a member that may not have begun.
  std::map<std::pair<int, Direction>, std::weak_ptr<LateOperation>> last_of_pair_;
};

}  // namespace sortie::trainer
