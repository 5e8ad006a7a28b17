// The communicator of ranks with a GPU each.
#pragma once

#include <memory>
#include <span>

#include "trainer/parallel/communicator.h"
#include "trainer/parallel/device_group.h"

namespace sortie::trainer {

/// Tensors of the GPU travel by `groups`, values of the host by `host`, which is a communicator of
/// messages (sockets, MPI, threads) and gives ranks, names and splits. Sums of a GPU's tensors are
/// the library's: the same on all ranks, and from run to run on the same machines, but not in the
/// order of the ranks; bf16 may be rounded at each step from rank to rank; of a maximum with a NaN
/// the library decides. All ranks call it; what can not be connected is an Error.
Result<std::unique_ptr<Communicator>> make_device_communicator(std::unique_ptr<Communicator> host,
                                                               DeviceGroups& groups, Device device);

/// Whether the tensors of a group travel from GPU to GPU, also those of the functions below.
bool sends_between_devices(const Communicator& group);
/// Messages that all ranks of the group begin at the same point, each its own, or none: one
/// collective, of values of one type. Of one sender to one receiver they are taken in the order of
/// the lists. None are to the rank itself. Starts when `ready` has passed, as Communicator's do.
Communicator::Handle exchange_between_devices(Communicator& group, DType dtype,
                                              std::span<const DeviceMessage> sends,
                                              std::span<const DeviceMessage> receives,
                                              const Event& ready);
/// For messages from one rank of a group to another, from GPU to GPU: a group of the two, the
/// sender first, with a stream of its own on each. A message waits on the GPU for its receiver, and
/// a receive for its message, so receives are posted when they are waited for and not before. All
/// ranks of the group call it; null for those that are neither. Only send_async() and
/// receive_async() in that direction.
std::unique_ptr<Communicator> make_line(Communicator& group, int from, int to);

}  // namespace sortie::trainer
