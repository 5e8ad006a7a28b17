// Messages between ranks of emulated GPUs. All of them pass through a hub in the process of rank 0,
// which knows what each rank requests and does the reductions.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <string>
#include <vector>

namespace emulated_cuda {

enum class Ask : std::uint32_t {
  join,  // count = ranks of the world, peer = rank of the sender
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  send,     // to rank `peer` of the group
  split,    // peer = color, count = key
  connect,  // with rank `peer` of the group, op = Role of the sender
  finalize,
  // Messages of the hub:
  result,     // of operation `sequence` of group `group`; joined: peer = 0
  received,   // from rank `peer` of the group
  connected,  // with rank `peer`
  part,       // of a split: group = the new one, peer = rank, count = ranks; `sequence` and `of`
              // identify it
  failed,     // the bytes are the error text
};

/// Role of a rank in a connection: collectives and each direction of messages use separate ones. A
/// taker confirms that it has received a message.
enum class Role : std::uint32_t { member, sender, receiver, taker };

/// Header of a message; `bytes` bytes follow.
struct Asked {
  Ask what = Ask::join;
  std::uint32_t group = 0, of = 0;
  std::uint32_t type = 0, op = 0;
  std::int32_t peer = -1;
  std::uint64_t sequence = 0;
  std::int64_t count = 0;
  std::uint64_t bytes = 0;
};

std::size_t size_of(std::uint32_t type);

/// Write and read a whole message. Return false if the connection is lost.
bool write_message(int socket, const Asked& head, const void* bytes);
bool read_message(int socket, Asked& head, std::vector<std::byte>& bytes);

/// Starts a hub that serves one world until its ranks have disconnected. Returns its port.
std::uint16_t start_hub();

}  // namespace emulated_cuda
