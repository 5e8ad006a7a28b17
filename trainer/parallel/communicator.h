// Communicator: the collectives of one group of ranks. Backends: mpi (the ranks of a run), threads
// (ranks as threads of one process, for tests) and single (a group of one).
//
// Every rank of a group issues the same collectives in the same order. Tensors are dense; counts
// are elements and may pass 2^31. Arguments that break these rules within one rank are bugs and are
// checked; what differs between ranks is found by the debug mode (SORTIE_COMM_DEBUG=1).
//
// Sums are taken in the order of the ranks of the group, ((x0 + x1) + x2) + ..., bf16 in f32 with
// one rounding at the end. So a result is the same to the last bit on every rank, from run to run,
// and whatever algorithm the size chooses: a reduce-scatter gives the bits of the all-reduce.
//
// A broken collective throws CommunicatorError: the one kind of error that crosses the trainer as
// an exception. Nothing but abort() may be called on any group of the process after it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer {

struct CommunicatorError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class ReduceOp : std::uint8_t {
  sum,
  max,  // NaN where a rank has NaN
};

/// A collective in flight. The tensors that it was given stay untouched by others until it is done.
/// It makes progress in poll() and wait() of any handle of the process, so handles may be waited
/// for in any order. wait() throws CommunicatorError: a peer is lost, or nothing has arrived for
/// the limit of SORTIE_COMM_TIMEOUT seconds (1800 if unset, 0 = no limit).
class CollectiveHandle : public Awaited {
 public:
  /// A handle is done when it goes, or a stream waits for it, unless an exception takes it away.
  ~CollectiveHandle() override = default;
  /// What is added to the context's current stream from now on starts after the collective. The
  /// host goes on; where the device computes in the host's thread, that thread waits.
  virtual void wait_on(ExecutionContext& context) = 0;
};

/// From here on a wait of any collective of this process that is not over throws
/// CommunicatorError: peers may be gone. May be called by a signal handler.
void give_up_waits(bool yes = true);
bool waits_given_up();

class Communicator {
 public:
  using Handle = std::unique_ptr<CollectiveHandle>;

  virtual ~Communicator() = default;
  virtual int rank() const = 0;  // in this group
  virtual int size() const = 0;
  /// "world", or what split() was told; in messages and tables.
  virtual const std::string& name() const = 0;
  /// The library that carries the collectives and its version, as it says at run time.
  virtual std::string library() const = 0;

  /// values = sum or maximum over ranks, in place. Sums of u8 are not taken. What takes a `ready`
  /// starts when that has passed, and its tensors may lie on a device: of one that streams use, all
  /// that they were given on these tensors, also on what had their memory before, comes before the
  /// event. How the values travel is up to the communicator: where messages are of host memory, by
  /// way of that.
  virtual Handle all_reduce_async(const Tensor& values, ReduceOp op, const Event& ready = {}) = 0;
  /// `input` is size() blocks of `output`'s elements; output = block rank(), reduced over ranks. It
  /// may be that block of `input` itself.
  virtual Handle reduce_scatter_async(const Tensor& input, const Tensor& output, ReduceOp op,
                                      const Event& ready = {}) = 0;
  /// `output` is size() blocks; block r = `input` of rank r. `input` may be block rank() of
  /// `output`.
  virtual Handle all_gather_async(const Tensor& input, const Tensor& output,
                                  const Event& ready = {}) = 0;
  /// `values` of `root` to all ranks, in place.
  virtual Handle broadcast_async(const Tensor& values, int root, const Event& ready = {}) = 0;
  /// send_counts[r] elements of `input`, behind those for lower ranks, go to rank r; its
  /// receive_counts[r] come into `output`, behind those of lower ranks. Counts sum up to the
  /// tensors' elements, and what a rank sends is what the other one expects.
  virtual Handle all_to_all_async(const Tensor& input, std::span<const std::int64_t> send_counts,
                                  const Tensor& output,
                                  std::span<const std::int64_t> receive_counts,
                                  const Event& ready = {}) = 0;
  /// To and from one other rank; matched in the order of issue, without the rest of the group.
  virtual Handle send_async(const Tensor& values, int to, const Event& ready = {}) = 0;
  virtual Handle receive_async(const Tensor& values, int from, const Event& ready = {}) = 0;
  virtual void barrier() = 0;
  /// Makes progress with all that is in flight; cheap. Handles do the same when they are asked.
  virtual void poll() {}

  /// Collectives that this rank has begun, over all groups of its process; may be read by any
  /// thread while this group lives. nullptr: not counted.
  virtual const std::atomic<std::uint64_t>* begun() const { return nullptr; }

  /// Cuts the group: ranks of one `color` make a new one, in the order of (key, rank); nullptr for
  /// a negative color. Called by all ranks of this group.
  virtual std::unique_ptr<Communicator> split(int color, int key, std::string name) = 0;

  /// One string from each rank, in rank order.
  virtual std::vector<std::string> all_gather(std::string_view text) = 0;

  /// Whether all ranks call this within `limit` of each other, whatever collectives they have open.
  /// A rank that fails asks it: after `false` only abort() may follow.
  virtual bool meet(std::chrono::milliseconds limit) = 0;
  /// Ends the processes of all ranks of the run, whatever they wait for; this one with `exit_code`.
  [[noreturn]] virtual void abort(int exit_code) = 0;

  // The same, waited for.
  void all_reduce(const Tensor& values, ReduceOp op) { all_reduce_async(values, op)->wait(); }
  void reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op) {
    reduce_scatter_async(input, output, op)->wait();
  }
  void all_gather(const Tensor& input, const Tensor& output) {
    all_gather_async(input, output)->wait();
  }
  void broadcast(const Tensor& values, int root) { broadcast_async(values, root)->wait(); }
  void all_to_all(const Tensor& input, std::span<const std::int64_t> send_counts,
                  const Tensor& output, std::span<const std::int64_t> receive_counts) {
    all_to_all_async(input, send_counts, output, receive_counts)->wait();
  }
  void send(const Tensor& values, int to) { send_async(values, to)->wait(); }
  void receive(const Tensor& values, int from) { receive_async(values, from)->wait(); }

  // Small values of the host.
  void all_reduce_sum(std::span<double> values);
  void broadcast(std::span<std::byte> bytes, int root);
};

/// The group of one: every collective is the identity.
std::unique_ptr<Communicator> make_single_communicator();

/// All ranks of the run through MPI. Initialises MPI (once per process, finalised with the last
/// group) and checks that MPI's world has `expected_size` ranks and that this one is
/// `expected_rank`: ErrorCode::unsupported when ranks were not wired up with each other.
Result<std::unique_ptr<Communicator>> make_mpi_communicator(int expected_rank, int expected_size);

}  // namespace sortie::trainer
