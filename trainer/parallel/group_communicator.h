// The communicator of every message backend: collectives as operations over a transport.
#pragma once

#include <map>

#include "trainer/parallel/agreement.h"
#include "trainer/parallel/engine.h"
#include "trainer/parallel/exchange.h"
#include "trainer/parallel/late_operation.h"

namespace sortie::trainer {

class GroupCommunicator final : public Communicator {
 public:
  /// Creates the group of all ranks of the transport. Reads SORTIE_COMM_DEBUG and
  /// SORTIE_COMM_TIMEOUT; throws CommunicatorError if a value is invalid.
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
  const std::atomic<std::uint64_t>* begun() const override { return engine_->begun.get(); }
  std::unique_ptr<Communicator> split(int color, int key, std::string name) override;
  std::vector<std::string> all_gather(std::string_view text) override;
  using Communicator::all_gather;
  bool meet(std::chrono::milliseconds limit) override;
  void abort(int exit_code) override { engine_->transport().abort(exit_code); }

  // For a communicator that transfers the values of some collectives by other means.

  /// Numbers a collective and returns its sequence number. In debug mode, first compares it with
  /// those of the other ranks. The caller counts it in counter() when it begins.
  std::uint64_t number(Collective collective, std::int64_t elements = 0, DType dtype = DType::u8,
                       int root = -1);
  /// The same for an all-to-all or an exchange, with the number of elements to and from each rank.
  std::uint64_t number_exchange(Collective collective, DType dtype,
                                std::span<const std::int64_t> send_counts,
                                std::span<const std::int64_t> receive_counts);
  /// What begun() points to.
  std::shared_ptr<std::atomic<std::uint64_t>> counter() const { return engine_->begun; }
  /// What the rank's thread waits for in any group of messages.
  std::shared_ptr<const LongWait> long_wait() const { return engine_->long_wait; }
  const GroupRanks& ranks() const { return group_; }
  /// "all-reduce 17"
  std::string label(Collective collective, std::uint64_t sequence) const;
  /// Sets the hosts of the ranks of the run, by rank, for the messages of all groups of the rank.
  void name_hosts(std::vector<std::string> hosts) { engine_->hosts = std::move(hosts); }
  /// Members that are known to be lost, and why: "rank 3 (h02): it has closed its connection";
  /// empty if there are none.
  std::string lost_members() const;
  /// Makes every later wait for a collective throw CommunicatorError. Handles of unfinished
  /// collectives may then be destroyed.
  void give_up() { engine_->give_up_all(); }

 private:
  GroupCommunicator(std::shared_ptr<Engine> engine, GroupRanks group, int id, bool debug);
  // Number a collective that begins now, and count it.
  std::uint64_t begin(Collective collective, std::int64_t elements = 0, DType dtype = DType::u8,
                      int root = -1);
  std::uint64_t begin_exchange(Collective collective, DType dtype,
                               std::span<const std::int64_t> send_counts,
                               std::span<const std::int64_t> receive_counts);
  /// Starts an operation. The handle keeps the tensors `kept` alive.
  Handle start(std::shared_ptr<Operation> operation, std::vector<Tensor> kept);
  /// Like start(), once `ready` has passed; the tensors may be in device memory.
  Handle start_when(const Event& ready, const std::string& what, const Tensor& input,
                    const Tensor& output, const LateOperation::Make& make);
  /// Runs an operation without a handle and blocks until it is done.
  void run(std::shared_ptr<Operation> operation);
  /// Sends `mine` to all other members and receives theirs into `others`, by member; blocks.
  void gather_bytes(std::span<const std::byte> mine, std::span<const std::span<std::byte>> others,
                    Part part, std::uint64_t sequence, std::string what);
  enum class Direction : std::uint8_t { send, receive };
  Handle pair(const Tensor& values, int member, Direction direction, const Event& ready);
  void compare_counts(Collective collective, std::span<const std::int64_t> send_counts,
                      std::span<const std::int64_t> receive_counts);
  /// Whether the result of a group of one is in place already.
  bool is_there(const Tensor& input, const Tensor& output) const {
    return size() == 1 && input.raw() == output.raw();
  }

  std::shared_ptr<Engine> engine_;
  const GroupRanks group_;
  const int id_;
  const bool debug_;
  std::uint64_t sequence_ = 0;
  Engine::Queue queue_;
  /// The last late message per member and direction, which may not have begun yet.
  std::map<std::pair<int, Direction>, std::weak_ptr<LateOperation>> last_of_pair_;
};

}  // namespace sortie::trainer
