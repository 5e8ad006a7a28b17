// The sockets backend: ranks that reach each other over TCP, without a library on the hosts. It
// carries what ranks with a GPU each tell each other beside NCCL. Connections are plain text, as
// those of MPI and NCCL are: they belong on the network of the cluster.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Where rank 0 waits for the others.
struct MeetingPlace {
  std::string host;  // as the others reach it
  std::uint16_t port = 0;
  /// Who does not know it is turned away; the same on all ranks, at most 32 bytes.
  std::string secret;
};

/// For rank 0: a socket that listens at `port` of all addresses; 0 = any, which is set then.
Result<Fd> listen_for_ranks(std::uint16_t& port);

/// All ranks of the run. `listener` is rank 0's, of that place; the others have none. Waits for all
/// of them, `limit` at most: ErrorCode::timeout names who has not come.
Result<std::unique_ptr<Communicator>> make_socket_communicator(int rank, int size,
                                                               const MeetingPlace& place,
                                                               Fd listener,
                                                               std::chrono::milliseconds limit);

}  // namespace sortie::trainer
