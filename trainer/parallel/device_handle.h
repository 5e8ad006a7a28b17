// What is in flight between GPUs, as a rank's own thread waits for it.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "trainer/parallel/device_watch.h"
#include "trainer/parallel/group_communicator.h"

namespace sortie::trainer {

/// What all groups of a rank share.
struct DeviceRank {
  DeviceRank(DeviceGroups& made_by, Device gpu)
      : groups(made_by), device(gpu), watch(made_by, communication_limit()) {}
  DeviceGroups& groups;
  const Device device;
  DeviceWatch watch;
  bool broken = false;  // all groups are aborted
};

/// Ends all that is in flight, as kernels that wait for others would keep the GPU from its own
/// work, and throws CommunicatorError.
[[noreturn]] void fail_with(DeviceRank& rank, GroupCommunicator& host, const std::string& message);
/// Fails so when something has failed beside the rank's thread, or before.
void check_sound(DeviceRank& rank, GroupCommunicator& host);

/// A wait of the rank's thread, for the GPU or for what its library does in threads of its own.
/// `rank` and `host` outlive it.
class DeviceWait {
 public:
  DeviceWait(DeviceRank& rank, GroupCommunicator& host) : rank_(rank), host_(host) {}

  /// Why nothing will come: this rank is asked to end, or another one is gone. Empty while there is
  /// hope. Moves messages of the host.
  std::string given_up();
  /// The same, or what the watch has found.
  std::string failed();
  /// The same for a call that the library goes on with, which is nothing yet that the watch could
  /// look after: also when it takes longer than SORTIE_COMM_TIMEOUT.
  std::string call_failed();
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
  /// `what` names collective and group, `done` is its end on the GPU, `kept` lives until then.
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
  bool ordered_ = false;  // done, or a stream waits for it
};

/// Of a collective of no elements.
struct NoDeviceWork final : CollectiveHandle {
  bool poll() override { return true; }
  void wait() override {}
  void wait_on(ExecutionContext&) override {}
};

}  // namespace sortie::trainer
