// The sockets backend: ranks connected over TCP, without a communication library on the hosts. For
// ranks with GPUs it carries the messages that do not go through NCCL. Connections are not
// encrypted, like those of MPI and NCCL: use them on the cluster's network only.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Address at which rank 0 accepts connections of the others.
struct MeetingPlace {
  std::string host;  // under which the others reach it
  std::uint16_t port = 0;
  /// Connections without it are rejected. The same on all ranks, at most 32 bytes.
  std::string secret;
};

/// Returns a socket that listens on `port` of all addresses. If `port` is 0, selects a free one and
/// stores it in `port`.
Result<Fd> listen_for_ranks(std::uint16_t& port);

/// Creates the group of all ranks of the run. `listener` is rank 0's socket, listening at `place`;
/// the other ranks pass none. Blocks until all ranks are connected to rank 0, for at most `limit`.
/// ErrorCode::timeout on rank 0 names the missing ranks.
Result<std::unique_ptr<Communicator>> make_socket_communicator(int rank, int size,
                                                               const MeetingPlace& place,
                                                               Fd listener,
                                                               std::chrono::milliseconds limit);

}  // namespace sortie::trainer
