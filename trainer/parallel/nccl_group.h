// A group of ranks on NCCL: its communicator, and its stream on the GPU. Communicators are
// non-blocking: a call may continue in NCCL's threads. Its end is awaited before the next call of
// the communicator, by polling, so that every wait can be interrupted.
#pragma once

#include <nccl.h>

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "trainer/parallel/device_group.h"

namespace sortie::trainer::nccl {

/// A communicator, and the data whose addresses NCCL keeps. NCCL's threads write `communicator`
/// when they have connected the ranks, and read `name` as long as the communicator exists.
struct Handle {
  explicit Handle(std::string called) : name(std::move(called)) {}
  const std::string name;
  ncclComm_t communicator = nullptr;
  /// Held during each NCCL call on the communicator: only one thread at a time may be in one. This
  /// includes queries of errors, which join NCCL's thread and free its data. Not held while
  /// waiting.
  std::mutex mutex;
};

/// "NCCL 2.28.9"
std::string library_text();
/// Throws CommunicatorError with NCCL's message.
[[noreturn]] void fail_with(ncclResult_t result, ncclComm_t communicator, const std::string& what);
/// Returns the configuration of a communicator; it refers to the name in the handle.
ncclConfig_t config_of(const Handle& handle);
/// Blocks until NCCL has completed a call in its own threads. Throws what `waiting` throws, or
/// CommunicatorError if the call failed. After an exception only ncclCommAbort may be called, and
/// NCCL may write to the handle until then.
void settle(Handle& handle, ncclResult_t result, const std::string& what,
            const WhileWaiting& waiting);

class NcclGroup final : public DeviceGroup {
 public:
  /// `handle` has a connected communicator.
  NcclGroup(Device device, std::unique_ptr<Handle> handle, int rank, int size);
  ~NcclGroup() override;
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  Event all_reduce(const Tensor& values, ReduceOp op, const Event& ready,
                   const WhileWaiting& waiting) override;
  Event reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op, const Event& ready,
                       const WhileWaiting& waiting) override;
  Event all_gather(const Tensor& input, const Tensor& output, const Event& ready,
                   const WhileWaiting& waiting) override;
  Event broadcast(const Tensor& values, int root, const Event& ready,
                  const WhileWaiting& waiting) override;
  Event all_to_all(const Tensor& input, std::span<const std::int64_t> send_counts,
                   const Tensor& output, std::span<const std::int64_t> receive_counts,
                   const Event& ready, const WhileWaiting& waiting) override;
  Event exchange(std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives,
                 const Event& ready, const WhileWaiting& waiting) override;
  std::unique_ptr<DeviceGroup> split(int color, int key, const std::string& name,
                                     const WhileWaiting& waiting) override;
  std::string problem() override;
  bool idle() override;

  /// Whether a call continues in NCCL's threads, which abort() joins.
  bool unsettled() const { return unsettled_; }
  /// Aborts everything in flight. Between ncclGroupStart and ncclGroupEnd it only begins to.
  /// Idempotent.
  void abort();

 private:
  /// Makes the NCCL call `call` and blocks until NCCL has completed it on the host.
  template <class Call>
  void request(const std::string& what, const WhileWaiting& waiting, const Call& call);
  /// Enqueues the NCCL call `call` on the stream, after `ready`. Returns the event of its end.
  template <class Call>
  Event add(const Event& ready, const WhileWaiting& waiting, const char* what, const Call& call);
  /// Finalizes the communicator. Returns false if that fails or takes too long.
  bool finalize();

  const Device device_;
  const std::unique_ptr<Handle> handle_;
  const ncclComm_t communicator_;
  const int rank_, size_;
  std::unique_ptr<Handle> split_;  // split in progress
  cudaStream_t stream_ = nullptr;
  bool aborted_ = false;
  bool unsettled_ = false;
};

}  // namespace sortie::trainer::nccl
