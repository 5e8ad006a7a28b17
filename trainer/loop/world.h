// The communicator of all ranks of a run.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "trainer/loop/rank_context.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Time that ranks wait for each other at the start: SORTIE_COMM_TIMEOUT; a year if that is 0, no
/// limit. ErrorCode::config as read_communication_limit().
Result<std::chrono::milliseconds> meeting_limit();

/// Connects the ranks whatever their devices are, so that they can compare these where there is no
/// launcher to do it through. Only for trainer.device = "auto" (`wanted`), with which they may
/// differ: over MPI under mpirun, else over TCP at MASTER_ADDR and MASTER_PORT. nullptr if there is
/// nothing to compare, or no way to meet. Blocks until all ranks are connected.
Result<std::unique_ptr<Communicator>> meet_before_world(const std::string& wanted,
                                                        const RankContext& rank);

/// Creates it for `backend` of [topology]: "mpi"; "nccl", for ranks with a GPU each, which does not
/// use MPI; "auto", nccl if the rank computes on a GPU, else mpi. With nccl, rank 0 publishes the
/// address at which it listens through the launcher, or, without SORTIE_SOCKET, listens at
/// MASTER_ADDR and MASTER_PORT. `met`, the result of meet_before_world(), becomes a part of it, or
/// is closed. Blocks until all ranks are connected. ErrorCode::config for nccl without a GPU.
Result<std::unique_ptr<Communicator>> make_world(const std::string& backend,
                                                 const RankContext& rank,
                                                 std::unique_ptr<Communicator> met = nullptr);

}  // namespace sortie::trainer
