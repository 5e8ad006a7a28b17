// ContextGroup: the ranks that share the tokens of each sequence (context parallelism), and the
// routes of keys and values between them.
//
// With N ranks, a sequence is divided into 2 N chunks of consecutive tokens. Rank c has chunks c
// and 2 N - 1 - c, so that under a causal mask all ranks have the same work (the zigzag split of
// Llama 3, Llama Team 2024).
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Number of chunks before its own in which a query sees at least one key.
using ChunkReach = std::int64_t;

/// A route of the keys and values of a chunk to the ranks that need them.
struct ChunkRoute {
  int chunk = 0;
  int owner = 0;      // the rank that has the chunk
  int direction = 1;  // 1: to the next higher rank, with wrap-around; -1: to the next lower
  int hops = 0;       // number of ranks visited
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
  /// The rank that a route reaches after `hop` hops; hop 0 is the owner.
  int at(const ChunkRoute& route, int hop) const {
    return ((route.owner + route.direction * hop) % size() + size()) % size();
  }
};

/// Reach of queries that see `window` keys (0 = all before them), in chunks of `chunk_tokens`
/// tokens.
ChunkReach chunk_reach(std::int64_t window, std::int64_t chunk_tokens, int chunks);
/// Whether a query of one chunk sees a key of another.
inline bool sees(int query_chunk, int key_chunk, ChunkReach reach) {
  return key_chunk <= query_chunk && query_chunk - key_chunk <= reach;
}
/// Routes of all chunks, ordered by chunk, the upward route of a chunk first. Together they reach
/// every rank with a query that sees the chunk, in the fewest hops that a ring allows. Without a
/// window these are N - 1 hops for each of the first N chunks, and c hops for the later chunk of
/// rank c, which only lower ranks see.
std::vector<ChunkRoute> chunk_routes(int ranks, ChunkReach reach);

}  // namespace sortie::trainer
