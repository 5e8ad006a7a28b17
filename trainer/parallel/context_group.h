// ContextGroup: the ranks that share the tokens of each sequence (context parallelism), and the way
// of keys and values among them.
//
// With N ranks a sequence is 2 N chunks of consecutive tokens, of which rank c has chunks c and
// 2 N - 1 - c: under a causal mask all ranks then have the same work (the zigzag cut of Llama 3,
// Llama Team 2024).
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Chunks of keys that a query sees something of: its own, and so many before it.
using ChunkReach = std::int64_t;

/// The way of the keys and values of a chunk to the ranks that need them.
struct ChunkRoute {
  int chunk = 0;
  int owner = 0;      // the rank that has the chunk
  int direction = 1;  // 1: from rank to rank upwards, around the end; -1: downwards
  int hops = 0;       // ranks that are visited
};

struct ContextGroup {
  Communicator& communicator;

  int rank() const { return communicator.rank(); }
  int size() const { return communicator.size(); }
  int chunks() const { return 2 * size(); }
  /// This rank's chunks: the earlier one (half 0) and the later one (half 1).
  int chunk(int half) const { return half == 0 ? rank() : chunks() - 1 - rank(); }
  int owner(int chunk) const { return chunk < size() ? chunk : chunks() - 1 - chunk; }
  /// Which half of its owner's tokens a chunk is.
  int half(int chunk) const { return chunk < size() ? 0 : 1; }
  /// The rank that a route leads to with hop number `hop`; 0 = the owner.
  int at(const ChunkRoute& route, int hop) const {
    return ((route.owner + route.direction * hop) % size() + size()) % size();
  }
};

/// For queries that see `window` keys (0 = all before them), in chunks of so many tokens.
ChunkReach chunk_reach(std::int64_t window, std::int64_t chunk_tokens, int chunks);
/// Whether a query of one chunk sees a key of another.
inline bool sees(int query_chunk, int key_chunk, ChunkReach reach) {
  return key_chunk <= query_chunk && query_chunk - key_chunk <= reach;
}
/// The ways of all chunks, by chunk, upwards before downwards: to every rank with a query that sees
/// the chunk, over as few hops as a ring allows. Where nothing is hidden by a window these are N -
/// 1 hops for each of the first N chunks, and for the later one of rank c, which earlier ranks
/// alone see, c hops.
std::vector<ChunkRoute> chunk_routes(int ranks, ChunkReach reach);

}  // namespace sortie::trainer
