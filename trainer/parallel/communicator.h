// Communicator: collectives of one group of ranks. Backends: single (one rank), mpi (ranks of a
// run) and threads (ranks as threads of one process, for tests).
//
// Collectives must be issued in the same order by every rank of the group. A broken collective
// throws CommunicatorError: the one kind of error that may cross the trainer as an exception.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::trainer {

struct CommunicatorError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A collective in flight. Its buffers stay untouched by others until done.
class CollectiveHandle {
 public:
  virtual ~CollectiveHandle() = default;
  /// Makes progress; true once complete. Never blocks.
  virtual bool poll() = 0;
  /// Blocks until complete.
  virtual void wait() = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The library that carries the collectives and its version, as it says at run time.
  virtual std::string library() const = 0;

  /// values = sum over ranks, in place, equal to the last bit on all ranks and from run to run. At
  /// most 2^31 - 1 elements.
  virtual std::unique_ptr<CollectiveHandle> all_reduce_sum_async(std::span<float> values) = 0;
  virtual void all_reduce_sum(std::span<double> values) = 0;
  /// `bytes` of `root` to all ranks, in place.
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  /// One string from each rank, in rank order.
  virtual std::vector<std::string> all_gather(std::string_view text) = 0;
  virtual void barrier() = 0;

  /// Whether all ranks call this within `limit` of each other, whatever collectives they have open.
  /// A rank that fails asks it: after `false` only abort() may follow.
  virtual bool meet(std::chrono::milliseconds limit) = 0;
  /// Ends the processes of all ranks, whatever they wait for; this one with `exit_code`.
  [[noreturn]] virtual void abort(int exit_code) = 0;
};

/// The group of one: every collective is the identity.
std::unique_ptr<Communicator> make_single_communicator();

/// All ranks of the run through MPI. Initialises MPI (once per process, finalised at destruction)
/// and checks that MPI's world has `expected_size` ranks and that this one is `expected_rank`:
/// ErrorCode::unsupported when ranks were not wired up with each other.
Result<std::unique_ptr<Communicator>> make_mpi_communicator(int expected_rank, int expected_size);

/// Runs `body` on `size` threads, each with the communicator of its rank. Rethrows the first
/// exception.
void run_thread_ranks(int size, const std::function<void(Communicator&)>& body);

}  // namespace sortie::trainer
