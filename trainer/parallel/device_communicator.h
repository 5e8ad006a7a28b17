// The communicator of ranks with a GPU each.
#pragma once

#include <memory>

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

}  // namespace sortie::trainer
