// Handles of collectives between GPUs, and how the rank's thread waits for them.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "trainer/parallel/device_watch.h"
#include "trainer/parallel/group_communicator.h"

namespace sortie::trainer {

/// State that all groups of a rank share.
struct DeviceRank {
  /// `begun` counts the collectives that the rank has begun.
  DeviceRank(DeviceGroups& made_by, Device gpu, std::shared_ptr<std::atomic<std::uint64_t>> begun,
             WatchedRank watched)
      : groups(made_by),
        device(gpu),
        watch(made_by, communication_limit(), std::move(begun), std::move(watched)) {}
  DeviceGroups& groups;
  const Device device;
  DeviceWatch watch;
  bool broken = false;  // all groups were aborted
};

/// Aborts everything in flight, because kernels that wait for other ranks would block the GPU, and
/// throws CommunicatorError.
[[noreturn]] void fail_with(DeviceRank& rank, GroupCommunicator& host, const std::string& message);
/// Calls fail_with() if the watch has found a failure. Throws CommunicatorError if all groups were
/// aborted before.
void check_sound(DeviceRank& rank, GroupCommunicator& host);

/// A wait of the rank's thread: for the GPU, or for a call that the library continues in its own
/// threads. `rank` and `host` must outlive it.
class DeviceWait {
 public:
  DeviceWait(DeviceRank& rank, GroupCommunicator& host) : rank_(rank), host_(host) {}

  /// Returns why waiting is futile: this rank was asked to end, or another rank of the group has
  /// been gone for 2 s. Else empty. Makes progress on messages of the host.
  std::string given_up();
  /// Returns the failure that the watch has found, else given_up().
  std::string failed();
  /// Like failed(), for a call that the library continues in its own threads. The watch does not
  /// cover such calls, so this also fails after SORTIE_COMM_TIMEOUT. `begins`: the collective that
  /// the call begins, about which the other ranks are then asked; nullptr for another call.
  std::string call_failed(const CollectiveName* begins);
  void nap() const;

 private:
  DeviceRank& rank_;
  GroupCommunicator& host_;
  const std::chrono::duration<double> limit_ = communication_limit();
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point lost_since_ = std::chrono::steady_clock::time_point::max();
};

class DeviceHandle final : public CollectiveHandle {
 public:
  /// `what` names the collective and its group. `done` passes when the GPU has completed it. The
  /// handle keeps the tensors `kept` alive.
  DeviceHandle(std::shared_ptr<DeviceRank> rank, GroupCommunicator& host, std::string what,
               Event done, std::vector<Tensor> kept)
      : rank_(std::move(rank)),
        host_(host),
        what_(std::move(what)),
        done_(std::move(done)),
        kept_(std::move(kept)) {}
  ~DeviceHandle() override;

  bool poll() override;
  void wait() override;
  void wait_on(ExecutionContext& context) override;

 private:
  std::shared_ptr<DeviceRank> rank_;
  GroupCommunicator& host_;
  const std::string what_;
  const Event done_;
  std::vector<Tensor> kept_;
  bool ordered_ = false;  // complete, or a stream waits for it
};

/// Handle of a collective without elements.
struct NoDeviceWork final : CollectiveHandle {
  bool poll() override { return true; }
  void wait() override {}
  void wait_on(ExecutionContext&) override {}
};

}  // namespace sortie::trainer
