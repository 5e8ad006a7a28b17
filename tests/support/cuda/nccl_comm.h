// Communicators of the emulated NCCL: what one is, and what its calls do in the background.
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

/// What is in a communicator's streams looks at this, also when the communicator is gone.
struct Life {
  std::atomic<bool> aborted{false}, broken{false};
  int rank = 0;
};

/// What NCCL's own thread does, as the looks of ncclCommGetAsyncError move it.
struct Job {
  std::function<bool()> look;          // true once done
  std::function<void()> stop = [] {};  // it is aborted: its last deed
};

}  // namespace emulated_cuda

struct ncclComm {
  ncclComm(std::shared_ptr<emulated_cuda::World> of, const char* called);
  const std::shared_ptr<emulated_cuda::World> world;
  const std::shared_ptr<emulated_cuda::Life> life = std::make_shared<emulated_cuda::Life>();
  std::uint32_t group = 0;
  int rank = 0, size = 0, device = 0;
  std::atomic<std::uint64_t> sequence{1};  // 0 is joining
  emulated_cuda::Job job;
  std::set<std::pair<int, emulated_cuda::Role>> connected;
  std::atomic<bool> inside{false};
  const char* const name;  // its maker's
  const std::string name_before;
};

namespace emulated_cuda {

/// A thread in a call of a communicator: NCCL has room for one.
class Inside {
 public:
  explicit Inside(ncclComm_t comm);
  ~Inside() { comm_->inside = false; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  ncclComm_t comm_;
};

/// From here on it has calls.
ncclComm_t enlist(ncclComm_t comm);
/// With the caller inside; moves what is pending.
ncclResult_t state_of(ncclComm_t comm);
void destroy(ncclComm_t comm);
/// The end of communicators frees memory of their GPU, which waits for all that it was given.
void free_aborted(const std::vector<ncclComm_t>& comms);
/// Writes where the caller of an interrupted call wanted it.
void write_late(ncclComm_t* place, ncclComm_t value);

/// Of one call, or of a group of calls.
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
  ncclComm_t comm = nullptr;  // until it is in its stream
  std::vector<Piece> pieces;
  std::string fault;
  bool begun = false;
  std::uint64_t seen = 0;  // of the world's news
};

/// NCCL connects ranks when they use a communicator, or a pair of it, for the first time, and only
/// then gives the stream its kernel.
void begin(cudaStream_t stream, std::shared_ptr<Calls> work);

}  // namespace emulated_cuda
