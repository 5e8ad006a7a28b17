// The communicator of all ranks of a run.
#pragma once

#include <memory>
#include <string>

#include "trainer/loop/rank_context.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// By `backend` of [topology]: "mpi"; "nccl", for ranks with a GPU each, which does not touch MPI:
/// rank 0 tells the others through the launcher where it waits for them, or, without SORTIE_SOCKET,
/// waits at MASTER_ADDR and MASTER_PORT; "auto", the one for what the rank computes on. Waits for
/// all ranks. ErrorCode::config: nccl without a GPU.
Result<std::unique_ptr<Communicator>> make_world(const std::string& backend,
                                                 const RankContext& rank);

}  // namespace sortie::trainer
