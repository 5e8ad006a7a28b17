// DeviceGroup: interface of collectives between the memory of GPUs. The device module implements it
// (nccl.cc); device_communicator.h builds a Communicator on it. A call adds a collective to the
// group's own stream, after an event, and does not wait for its end. Failures throw
// CommunicatorError.
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

/// Called repeatedly while the library works on a call in its own threads, for example connects
/// ranks. Throws to end the wait. Not kept after the call.
using WhileWaiting = std::function<void()>;

/// A tensor to send to, or receive from, another rank of a group.
struct DeviceMessage {
  Tensor values;
  int rank = 0;
};

class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;

  /// Tensors are dense and in the memory of this group's GPU. They must not be accessed until the
  /// returned event has passed. A caller that has made a stream wait for the event need not keep
  /// them any longer. Shapes, counts and aliasing are those of Communicator. A call returns once
  /// the collective is on the stream. The first collective of a group, and the first message of a
  /// pair, return only after the other ranks have called them too, because the ranks connect then.
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
  /// Sends and receives messages as one operation, so that they can not deadlock. Messages of one
  /// sender to one receiver match in the order of calls and of the lists.
  virtual Event exchange(std::span<const DeviceMessage> sends,
                         std::span<const DeviceMessage> receives, const Event& ready,
                         const WhileWaiting& waiting) = 0;

  /// Splits the group as Communicator::split does; nullptr for a negative color. Collective over
  /// the group.
  virtual std::unique_ptr<DeviceGroup> split(int color, int key, const std::string& name,
                                             const WhileWaiting& waiting) = 0;

  /// Returns the library's message of an asynchronous error. Empty if there is none, or if another
  /// thread is in a call of this group. Thread-safe.
  virtual std::string problem() = 0;
  /// Whether the GPU has completed all work of this group.
  virtual bool idle() = 0;
};

/// Creates groups: the communication library of the device module.
class DeviceGroups {
 public:
  virtual ~DeviceGroups() = default;
  /// "NCCL 2.28.9"
  virtual std::string library() const = 0;
  /// Environment variables that decide the order of sums. All ranks must have the same ones, so the
  /// settings of rank 0 are passed to adopt_settings() on all ranks before the first group is
  /// created.
  virtual std::string settings() const = 0;
  virtual void adopt_settings(const std::string& settings) = 0;
  /// For rank 0: creates the id with which all ranks of a new group find each other.
  virtual std::string new_id() = 0;
  /// Creates a group; called by all of its ranks, each with its own GPU. Blocks until they are
  /// connected.
  virtual std::unique_ptr<DeviceGroup> join(Device device, const std::string& id, int rank,
                                            int size, const std::string& name,
                                            const WhileWaiting& waiting) = 0;
  /// Aborts everything in flight in these groups of one GPU, whatever other ranks do. All groups of
  /// the GPU must be aborted together: aborting one frees GPU memory, which waits for the kernels
  /// of all. Later calls of these groups throw.
  virtual void abort(std::span<DeviceGroup* const> groups) = 0;
};

}  // namespace sortie::trainer
