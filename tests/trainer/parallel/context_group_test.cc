// Tests of the routes of keys and values between ranks that share sequences.
#include "trainer/parallel/context_group.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace sortie::trainer;

namespace {

int stands_at(const ChunkRoute& route, int hop, int ranks) {
  return ((route.owner + route.direction * hop) % ranks + ranks) % ranks;
}

}  // namespace

TEST_CASE("queries reach the chunk that their window's first token is in") {
  for (const std::int64_t tokens : {1, 3, 8})
    for (std::int64_t window = 1; window <= 6 * tokens + 2; ++window) {
      CAPTURE(tokens);
      CAPTURE(window);
      constexpr int kChunks = 6;
      // From the first query of the last chunk to its earliest key.
      const std::int64_t first = std::max<std::int64_t>(0, (kChunks - 1) * tokens - window + 1);
      CHECK(chunk_reach(window, tokens, kChunks) == kChunks - 1 - first / tokens);
    }
  CHECK(chunk_reach(0, 8, 6) == 5);
}

TEST_CASE("every rank that sees a chunk is on its way once, and no way ends elsewhere") {
  for (int ranks = 2; ranks <= 8; ++ranks)
    for (ChunkReach reach = 0; reach < 2 * ranks; ++reach) {
      CAPTURE(ranks);
      CAPTURE(reach);
      const std::vector<ChunkRoute> routes = chunk_routes(ranks, reach);
      for (int chunk = 0; chunk < 2 * ranks; ++chunk) {
        std::vector<int> visits(static_cast<std::size_t>(ranks));
        for (const ChunkRoute& route : routes) {
          if (route.chunk != chunk) continue;
          CHECK(route.owner == std::min(chunk, 2 * ranks - 1 - chunk));
          for (int hop = 1; hop <= route.hops; ++hop)
            ++visits[static_cast<std::size_t>(stands_at(route, hop, ranks))];
        }
        for (int rank = 0; rank < ranks; ++rank) {
          const bool needs = sees(rank, chunk, reach) || sees(2 * ranks - 1 - rank, chunk, reach);
          const bool owns = rank == std::min(chunk, 2 * ranks - 1 - chunk);
          const int visited = visits[static_cast<std::size_t>(rank)];
          CHECK(visited <= (owns ? 0 : 1));
          if (needs && !owns) CHECK(visited == 1);
        }
      }
      for (const ChunkRoute& route : routes) {
        const int last = stands_at(route, route.hops, ranks);
        CHECK((sees(last, route.chunk, reach) || sees(2 * ranks - 1 - last, route.chunk, reach)));
      }
    }
}

TEST_CASE("without a window early chunks go around, late ones to earlier ranks only") {
  for (const int ranks : {2, 4, 8}) {
    int hops = 0;
    for (const ChunkRoute& route : chunk_routes(ranks, 2 * ranks - 1)) {
      CHECK(route.direction == (route.chunk < ranks ? 1 : -1));
      CHECK(route.hops == (route.chunk < ranks ? ranks - 1 : route.owner));
      hops += route.hops;
    }
    CHECK(hops == ranks * (ranks - 1) * 3 / 2);
  }
}

TEST_CASE("the work of causal attention is the same on all ranks") {
  for (const int ranks : {2, 3, 4, 8})
    for (int rank = 0; rank < ranks; ++rank) {
      int pairs = 0;  // half pairs of chunks; a chunk with itself is one half
      for (const int query : {rank, 2 * ranks - 1 - rank})
        for (int key = 0; key < 2 * ranks; ++key)
          pairs += sees(query, key, 2 * ranks - 1) ? (query == key ? 1 : 2) : 0;
      CHECK(pairs == 2 * (2 * ranks - 1) + 2);
    }
}
