// Communicator of ranks that have a GPU each.
#pragma once

#include <atomic>
#include <memory>
#include <span>

#include "trainer/parallel/communicator.h"
#include "trainer/parallel/device_group.h"
#include "trainer/parallel/peer_inquiry.h"

namespace sortie::trainer {

/// Creates a communicator whose collectives on GPU tensors use `groups`. Everything else uses
/// `host`: values in host memory, texts, splits, barriers and messages between two ranks. `host`
/// must be a message-based communicator (sockets, MPI, threads). `groups` must outlive the result.
/// Collective over `host`. ErrorCode::unsupported if the ranks can not be connected.
///
/// The library computes sums of GPU tensors: they are the same on all ranks, and from run to run on
/// the same machines, but not in rank order. bf16 may be rounded at each step from rank to rank.
/// Whether a maximum propagates NaN depends on the library.
///
/// Communicator::begun() counts a collective between GPUs once the GPU has reached it, at most 50
/// ms later.
///
/// If a collective makes no progress for SORTIE_COMM_TIMEOUT, or fails, the message names the ranks
/// that are missing, their hosts and where they are, as far as `place` has the means.
Result<std::unique_ptr<Communicator>> make_device_communicator(std::unique_ptr<Communicator> host,
                                                               DeviceGroups& groups, Device device,
                                                               RunPlace place = {});

/// Whether the tensors of a group are sent directly between GPUs. Required by the functions below
/// (checked).
bool sends_between_devices(const Communicator& group);
/// Whether this rank's GPU has waited for other ranks in a collective for some seconds. Any thread
/// may read it while the group exists. nullptr for a communicator of another kind.
const std::atomic<bool>* long_wait_between_devices(const Communicator& group);
/// Starts messages as one collective. All ranks of the group call it at the same point, each with
/// its own messages or none. All values are of type `dtype`. Messages of one sender to one receiver
/// match in list order. A rank must not send to itself (checked). Starts once `ready` has passed,
/// as Communicator's functions do.
Communicator::Handle exchange_between_devices(Communicator& group, DType dtype,
                                              std::span<const DeviceMessage> sends,
                                              std::span<const DeviceMessage> receives,
                                              const Event& ready);
/// Creates a group of two for messages directly between GPUs: rank `from` of `group`, which sends,
/// is rank 0 of it, and rank `to` is rank 1. It has a separate stream on each GPU. Use only
/// send_async() and receive_async() in that direction. A send waits on the GPU for its receive, and
/// a receive for its send, so post a receive only when you wait for it. Collective over `group`;
/// returns nullptr on all other ranks.
std::unique_ptr<Communicator> make_line(Communicator& group, int from, int to);

}  // namespace sortie::trainer
