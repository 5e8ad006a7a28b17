// Communicators of the emulated NCCL, and the work that their calls do in the background.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cuda/nccl_world.h"

namespace emulated_cuda {

/// State that work in a communicator's streams checks; it outlives the communicator.
struct Life {
  std::atomic<bool> aborted{false}, broken{false};
  int rank = 0;
};

/// An operation of NCCL's background thread. Calls of ncclCommGetAsyncError advance it.
struct Job {
  std::function<bool()> look;          // advances it; true once it is complete
  std::function<void()> stop = [] {};  // called when it is aborted
};

}  // namespace emulated_cuda

struct ncclComm {
  ncclComm(std::shared_ptr<emulated_cuda::World> of, const char* called);
  const std::shared_ptr<emulated_cuda::World> world;
  const std::shared_ptr<emulated_cuda::Life> life = std::make_shared<emulated_cuda::Life>();
  std::uint32_t group = 0;
  int rank = 0, size = 0, device = 0;
  std::atomic<std::uint64_t> sequence{1};  // 0 is for joining
  emulated_cuda::Job job;
  std::set<std::pair<int, emulated_cuda::Role>> connected;
  std::atomic<bool> inside{false};
  const char* const name;  // owned by the creator
  const std::string name_before;
};

namespace emulated_cuda {

/// Marks a thread as being in a call of a communicator. NCCL allows only one.
class Inside {
 public:
  explicit Inside(ncclComm_t comm);
  ~Inside() { comm_->inside = false; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  ncclComm_t comm_;
};

/// Registers a communicator, so that calls of it are accepted.
ncclComm_t enlist(ncclComm_t comm);
/// State of the communicator; advances its pending operation. The caller must hold an Inside.
ncclResult_t state_of(ncclComm_t comm);
void destroy(ncclComm_t comm);
/// Destroys communicators. This frees memory of their GPUs, so it waits for all their queued work.
void free_aborted(const std::vector<ncclComm_t>& comms);
/// Writes to the place that the caller of an interrupted call passed. Ends the process if the place
/// is on this thread's stack.
void write_late(ncclComm_t* place, ncclComm_t value);

/// The part of one call; grouped calls have several.
struct Piece {
  Asked head;
  const void* from = nullptr;
  std::size_t from_bytes = 0;
  void* to = nullptr;
  std::size_t to_bytes = 0;
};
struct Calls {
  std::shared_ptr<World> world;
  std::shared_ptr<Life> life;
  ncclComm_t comm = nullptr;  // valid until the work is in its stream
  std::vector<Piece> pieces;
  std::string fault;
  bool begun = false;
  std::uint64_t seen = 0;  // World::news() at the last attempt
};

/// Starts the work. As in NCCL, ranks are connected when a communicator, or a pair of its ranks, is
/// used for the first time; only then the work is added to the stream.
void begin(cudaStream_t stream, std::shared_ptr<Calls> work);

}  // namespace emulated_cuda
