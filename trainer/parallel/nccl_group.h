// A group of ranks on NCCL: its communicator, and its stream on the GPU. Communicators are not
// blocking: a call may go on in NCCL's threads, and is waited for before anything else is asked of
// the communicator, so that nothing can wait without an end.
#pragma once

#include <nccl.h>

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "trainer/parallel/device_group.h"

namespace sortie::trainer::nccl {

/// A communicator, and what NCCL keeps the address of: its threads write `communicator` when they
/// have connected the ranks, and read the name for as long as it lives.
struct Handle {
  explicit Handle(std::string called) : name(std::move(called)) {}
  const std::string name;
  ncclComm_t communicator = nullptr;
  /// Held by who is in a call of NCCL: one thread at a time may be, also to ask for errors, which
  /// joins NCCL's thread and frees what that has left. Not held while waiting.
  std::mutex mutex;
};

/// "NCCL 2.28.9"
std::string library_text();
/// Throws CommunicatorError with NCCL's words.
[[noreturn]] void fail_with(ncclResult_t result, ncclComm_t communicator, const std::string& what);
/// The configuration of a communicator; it reads the handle.
ncclConfig_t config_of(const Handle& handle);
/// Waits until what NCCL does in its own threads is done; throws what `waiting` throws, or that it
/// failed. After that only ncclCommAbort may follow, and NCCL writes to the handle until then.
void settle(Handle& handle, ncclResult_t result, const std::string& what,
            const WhileWaiting& waiting);

class NcclGroup final : public DeviceGroup {
 public:
  /// Of a communicator that is connected.
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

  /// Whether a call goes on in NCCL's threads, which the abort joins.
  bool unsettled() const { return unsettled_; }
  /// Ends what is in flight; between ncclGroupStart and ncclGroupEnd this only begins.
  void abort();

 private:
  /// Asks NCCL for what `call` does, and waits until it has been done.
  template <class Call>
  void request(const std::string& what, const WhileWaiting& waiting, const Call& call);
  /// Adds what `call` asks NCCL for to the stream, behind `ready`.
  template <class Call>
  Event add(const Event& ready, const WhileWaiting& waiting, const char* what, const Call& call);
  /// Whether all members have come to the end of the group, or at least this one could.
  bool finalize();

  const Device device_;
  const std::unique_ptr<Handle> handle_;
  const ncclComm_t communicator_;
  const int rank_, size_;
  std::unique_ptr<Handle> split_;  // that is being made
  cudaStream_t stream_ = nullptr;
  bool aborted_ = false;
  bool unsettled_ = false;
};

}  // namespace sortie::trainer::nccl
