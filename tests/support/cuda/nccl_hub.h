// What ranks of emulated GPUs send each other: all of it through a hub in the process of rank 0,
// which knows what each rank asks for and adds up.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <string>
#include <vector>

namespace emulated_cuda {

enum class Ask : std::uint32_t {
  join,  // count = ranks of the world, peer = this one's rank
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  send,     // to rank `peer` of the group
  split,    // peer = color, count = key
  connect,  // with rank `peer` of the group, op = this one's role
  finalize,
  // of the hub:
  result,     // of the operation `sequence` of group `group`; joined: peer = 0
  received,   // from rank `peer` of the group
  connected,  // the same of rank `peer`
  part,    // of a split: group = the new one, peer = rank, count = ranks; sequence and `of` name it
  failed,  // the bytes are words
};

/// What a rank is in a connection: collectives and each direction of messages have their own. A
/// taker has received a message.
enum class Role : std::uint32_t { member, sender, receiver, taker };

/// A message; `bytes` bytes follow.
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

/// False when the connection is gone.
bool write_message(int socket, const Asked& head, const void* bytes);
bool read_message(int socket, Asked& head, std::vector<std::byte>& bytes);

/// Starts a hub that serves one world until its ranks are gone; returns its port.
std::uint16_t start_hub();

}  // namespace emulated_cuda
