// Communicator: the collectives of one group of ranks. Backends: mpi and sockets (the ranks of a
// run), threads (ranks as threads of one process, for tests) and single (a group of one).
// device_communicator.h adds collectives between GPUs.
//
// Every rank of a group issues the same collectives in the same order. Tensors are dense. Counts
// are in elements and may exceed 2^31. Arguments that break these rules within one rank are bugs
// and are checked. Differences between ranks are found only by the debug mode
// (SORTIE_COMM_DEBUG=1).
//
// Sums are computed in the order of the ranks of the group, ((x0 + x1) + x2) + ..., and sums of
// bf16 in f32 with one rounding at the end. So a result is bit-identical on every rank, from run to
// run, and whichever algorithm the size selects: a reduce-scatter gives the bits of the all-reduce.
// Sums between GPUs have fewer guarantees (device_communicator.h).
//
// A failed collective throws CommunicatorError, the only kind of error that crosses the trainer as
// an exception. After it, only abort() may be called on any group of the process.
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
  max,  // NaN if any rank has NaN; not guaranteed between GPUs
};

/// A collective in flight. Its tensors must not be accessed until it is complete. poll() and wait()
/// of any handle make progress on all collectives of the process, so handles may be waited for in
/// any order. wait() throws CommunicatorError if a peer is lost, or if nothing has arrived for
/// SORTIE_COMM_TIMEOUT seconds (1800 if unset, 0 = no limit).
class CollectiveHandle : public Awaited {
 public:
  /// The collective must be complete, or a stream must wait for it (checked), unless the stack is
  /// being unwound or a collective has failed.
  ~CollectiveHandle() override = default;
  /// Makes work that is added to the context's current stream from now on start after the
  /// collective. Blocks the host if the stream itself can not wait: where the device computes on
  /// the calling thread, and on a GPU if the collective goes through host messages.
  virtual void wait_on(ExecutionContext& context) = 0;
};

/// Makes every unfinished and later wait for a collective of this process throw CommunicatorError,
/// because peers may be gone. `yes` = false revokes this. Async-signal-safe.
void give_up_waits(bool yes = true);
bool waits_given_up();

class Communicator {
 public:
  using Handle = std::unique_ptr<CollectiveHandle>;

  virtual ~Communicator() = default;
  virtual int rank() const = 0;  // in this group
  virtual int size() const = 0;
  /// "world", or the name passed to split(); used in messages and tables.
  virtual const std::string& name() const = 0;
  /// Name and version of the library that performs the collectives, as it reports them at run time.
  virtual std::string library() const = 0;
  /// Settings of this library that decide the order of sums, as "NAME=VALUE NAME=VALUE"; the same
  /// on all ranks. "" = it has none.
  virtual std::string settings() const { return ""; }

  /// Reduces `values` over all ranks, in place. ReduceOp::sum does not support u8.
  ///
  /// All functions with a `ready` event start once it has passed. Their tensors may be in device
  /// memory. On a device with streams, all stream work on these tensors, and on previous users of
  /// their memory, must precede the event. Communicators whose messages use host memory copy device
  /// tensors through it.
  virtual Handle all_reduce_async(const Tensor& values, ReduceOp op, const Event& ready = {}) = 0;
  /// Reduces `input`, which is size() blocks of output.elements() each, over all ranks, and writes
  /// block rank() of the result to `output`. `output` may be that block of `input` itself.
  virtual Handle reduce_scatter_async(const Tensor& input, const Tensor& output, ReduceOp op,
                                      const Event& ready = {}) = 0;
  /// Writes the `input` of each rank r to block r of `output`, which is size() blocks. `input` may
  /// be block rank() of `output`.
  virtual Handle all_gather_async(const Tensor& input, const Tensor& output,
                                  const Event& ready = {}) = 0;
  /// Copies the `values` of rank `root` to all ranks, in place.
  virtual Handle broadcast_async(const Tensor& values, int root, const Event& ready = {}) = 0;
  /// Sends send_counts[r] elements of `input` to each rank r, and receives receive_counts[r]
  /// elements from it into `output`; both tensors are ordered by rank. The counts add up to the
  /// elements of the tensors. What a rank sends to another must be what the other expects.
  virtual Handle all_to_all_async(const Tensor& input, std::span<const std::int64_t> send_counts,
                                  const Tensor& output,
                                  std::span<const std::int64_t> receive_counts,
                                  const Event& ready = {}) = 0;
  /// Send to or receive from one other rank, without the rest of the group. Messages of a pair
  /// match in the order in which they are issued.
  virtual Handle send_async(const Tensor& values, int to, const Event& ready = {}) = 0;
  virtual Handle receive_async(const Tensor& values, int from, const Event& ready = {}) = 0;
  virtual void barrier() = 0;
  /// Makes progress on everything in flight; cheap. Polling a handle does the same.
  virtual void poll() {}

  /// Number of collectives that this rank has begun, over all groups of its process. Any thread may
  /// read it while this group exists. nullptr if not counted.
  virtual const std::atomic<std::uint64_t>* begun() const { return nullptr; }

  /// Splits the group: ranks with the same `color` form a new group, ordered by (key, rank).
  /// Returns nullptr for a negative color. Collective over this group.
  virtual std::unique_ptr<Communicator> split(int color, int key, std::string name) = 0;

  /// Returns one string from each rank, in rank order.
  virtual std::vector<std::string> all_gather(std::string_view text) = 0;

  /// Returns true if all ranks call this within `limit` of each other, regardless of unfinished
  /// collectives. For a rank that fails: after `false` only abort() may be called.
  virtual bool meet(std::chrono::milliseconds limit) = 0;
  /// Ends the processes of all ranks of the run, even if they are blocked; this one with
  /// `exit_code`.
  [[noreturn]] virtual void abort(int exit_code) = 0;

  // Blocking versions.
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

  // Blocking versions for small values in host memory.
  void all_reduce_sum(std::span<double> values);
  void broadcast(std::span<std::byte> bytes, int root);
};

/// Creates a group of one rank, in which every collective is the identity.
std::unique_ptr<Communicator> make_single_communicator();

/// Creates the group of all ranks of the run over MPI. Initialises MPI, once per process; MPI is
/// finalised when the last group is destroyed. ErrorCode::unsupported if MPI can not be
/// initialised, or if it reports another rank or size than expected because the ranks were not
/// connected with each other.
Result<std::unique_ptr<Communicator>> make_mpi_communicator(int expected_rank, int expected_size);

}  // namespace sortie::trainer
