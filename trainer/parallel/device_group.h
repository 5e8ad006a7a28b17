// DeviceGroup: what carries collectives between the memory of GPUs. The device module has it
// (nccl.cc); device_communicator.h makes a Communicator of it. Calls add a collective to the
// group's own stream, behind an event, and return at once. What fails throws CommunicatorError.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "trainer/parallel/communicator.h"
#include "trainer/tensor/stream.h"
#include "trainer/tensor/tensor.h"

namespace sortie::trainer {

/// Called again and again while the library works on a call in threads of its own, for example
/// connects ranks; throws what is to end that wait. It is not kept after the call.
using WhileWaiting = std::function<void()>;

/// A tensor on its way to or from another rank of a group.
struct DeviceMessage {
  Tensor values;
  int rank = 0;
};

class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;

  /// Tensors are dense and of this group's GPU; they stay untouched until the event that comes back
  /// has passed, and who gives the event away to a stream keeps no hold of them after that. Shapes,
  /// counts and places are those of Communicator. Each call returns when the stream has it, which
  /// the first ones do only when the other ranks have called, too: they connect then.
  virtual Event all_reduce(const Tensor& values, ReduceOp op, const Event& ready,
                           const WhileWaiting& waiting) = 0;
  virtual Event reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op,
                               const Event& ready, const WhileWaiting& waiting) = 0;
  virtual Event all_gather(const Tensor& input, const Tensor& output, const Event& ready,
                           const WhileWaiting& waiting) = 0;
  virtual Event broadcast(const Tensor& values, int root, const Event& ready,
                          const WhileWaiting& waiting) = 0;
  virtual Event all_to_all(const Tensor& input, std::span<const std::int64_t> send_counts,
                           const Tensor& output, std::span<const std::int64_t> receive_counts,
                           const Event& ready, const WhileWaiting& waiting) = 0;
  /// Messages in both directions, which may wait for each other. Those of one sender to one
  /// receiver are taken in the order of the calls, and of the lists.
  virtual Event exchange(std::span<const DeviceMessage> sends,
                         std::span<const DeviceMessage> receives, const Event& ready,
                         const WhileWaiting& waiting) = 0;

  /// Cuts the group as Communicator::split does; null for a negative color. All members call it.
  virtual std::unique_ptr<DeviceGroup> split(int color, int key, const std::string& name,
                                             const WhileWaiting& waiting) = 0;

  /// What has gone wrong beside the calls, in the library's words; empty when nothing has, or when
  /// another thread is in a call of this group. Any thread may ask.
  virtual std::string problem() = 0;
  /// Whether the GPU has done all that it was given by this group.
  virtual bool idle() = 0;
};

/// The library of a device module that makes groups.
class DeviceGroups {
 public:
  virtual ~DeviceGroups() = default;
  /// "NCCL 2.28.9"
  virtual std::string library() const = 0;
  /// The variables of the environment that decide how sums are taken: all ranks have to have the
  /// same, so those of rank 0 are given to `adopt_settings` of all before there is a group.
  virtual std::string settings() const = 0;
  virtual void adopt_settings(const std::string& settings) = 0;
  /// For rank 0: what all ranks of a new group have to know to find each other.
  virtual std::string new_id() = 0;
  /// All ranks of the group, each with a GPU of its own. Returns when they are connected.
  virtual std::unique_ptr<DeviceGroup> join(Device device, const std::string& id, int rank,
                                            int size, const std::string& name,
                                            const WhileWaiting& waiting) = 0;
  /// Ends what is in flight of these groups, all of one GPU, whatever other ranks do. All at once:
  /// the end of one frees memory of the GPU, which waits for kernels of all. Their calls throw from
  /// here on.
  virtual void abort(std::span<DeviceGroup* const> groups) = 0;
};

}  // namespace sortie::trainer
