#include "trainer/parallel/context_group.h"

#include <algorithm>

namespace sortie::trainer {

ChunkReach chunk_reach(std::int64_t window, std::int64_t chunk_tokens, int chunks) {
  if (window == 0) return chunks - 1;
  if (window == 1) return 0;
  // The nearest tokens of two chunks d apart are (d - 1) * chunk_tokens + 1 positions apart.
  return std::min<std::int64_t>(chunks - 1, 1 + (window - 2) / chunk_tokens);
}

std::vector<ChunkRoute> chunk_routes(int ranks, ChunkReach reach) {
  std::vector<ChunkRoute> routes;
  for (int chunk = 0; chunk < 2 * ranks; ++chunk) {
    const int owner = std::min(chunk, 2 * ranks - 1 - chunk);
    // needs[d]: the rank d steps above the owner has a query that sees the chunk.
    std::vector<bool> needs(static_cast<std::size_t>(ranks));
    for (int step = 1; step < ranks; ++step) {
      const int rank = (owner + step) % ranks;
      needs[static_cast<std::size_t>(step)] =
          sees(rank, chunk, reach) || sees(2 * ranks - 1 - rank, chunk, reach);
    }
    const auto needed = [&](int step) { return needs[static_cast<std::size_t>(step)]; };
    // Tries `up` hops upwards and the rest downwards. Of equally short routes, early chunks take
    // the one upwards and late ones the one downwards, so that links are used in both directions.
    int best_up = 0, best_down = ranks;
    for (int i = 0; i < ranks; ++i) {
      const int up = chunk < ranks ? ranks - 1 - i : i;
      if (up > 0 && !needed(up)) continue;
      int first_left = up + 1;
      while (first_left < ranks && !needed(first_left)) ++first_left;
      const int down = ranks - first_left;
      if (up + down < best_up + best_down) {
        best_up = up;
        best_down = down;
      }
    }
    if (best_up > 0) routes.push_back({chunk, owner, 1, best_up});
    if (best_down > 0) routes.push_back({chunk, owner, -1, best_down});
  }
  return routes;
}

}  // namespace sortie::trainer
