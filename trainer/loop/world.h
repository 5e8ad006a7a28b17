// The communicator of all ranks of a run.
#pragma once

#include <memory>
#include <string>

#include "trainer/loop/rank_context.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Creates it for `backend` of [topology]: "mpi"; "nccl", for ranks with a GPU each, which does not
/// use MPI; "auto", nccl if the rank computes on a GPU, else mpi. With nccl, rank 0 publishes the
/// address at which it listens through the launcher, or, without SORTIE_SOCKET, listens at
/// MASTER_ADDR and MASTER_PORT. Blocks until all ranks are connected. ErrorCode::config for nccl
/// without a GPU.
Result<std::unique_ptr<Communicator>> make_world(const std::string& backend,
                                                 const RankContext& rank);

}  // namespace sortie::trainer
