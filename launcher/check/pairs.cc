#include "launcher/check/pairs.h"

#include <algorithm>
#include <random>

namespace sortie::launcher::check {

std::vector<std::vector<std::size_t>> choose_peers(std::size_t count, std::uint64_t seed) {
  std::vector<std::vector<std::size_t>> peers(count);
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < count; ++i) {
    if (count <= kAllPairsUpTo) {
      for (std::size_t j = 0; j < count; ++j)
        if (j != i) peers[i].push_back(j);
      continue;
    }
    peers[i].push_back((i + 1) % count);
    while (peers[i].size() < 1 + kRandomPeers) {
      const std::size_t other = random() % count;
      if (other != i && std::ranges::find(peers[i], other) == peers[i].end())
        peers[i].push_back(other);
    }
  }
  return peers;
}

}  // namespace sortie::launcher::check
