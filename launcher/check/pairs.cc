#include "launcher/check/pairs.h"

#include <algorithm>
#include <map>
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

std::vector<std::vector<std::size_t>> choose_site_peers(const std::vector<std::string>& sites,
                                                        std::uint64_t seed) {
  std::map<std::string, std::vector<std::size_t>> members;
  for (std::size_t i = 0; i < sites.size(); ++i) members[sites[i]].push_back(i);
  std::vector<std::vector<std::size_t>> peers(sites.size());
  for (const auto& [site, hosts] : members) {
    const auto chosen = choose_peers(hosts.size(), seed++);
    for (std::size_t i = 0; i < hosts.size(); ++i)
      for (const std::size_t other : chosen[i]) peers[hosts[i]].push_back(hosts[other]);
  }
  return peers;
}

std::vector<std::vector<std::pair<std::size_t, std::size_t>>> pair_rounds(std::size_t count) {
  // Circle method of round-robin tournaments: one host stays, the others rotate by one. If the
  // count is odd, one host is idle in each round.
  const std::size_t places = count + count % 2;
  std::vector<std::vector<std::pair<std::size_t, std::size_t>>> rounds;
  for (std::size_t round = 0; round + 1 < places; ++round) {
    auto& pairs = rounds.emplace_back();
    const auto at = [&](std::size_t place) {
      return place == 0 ? 0 : 1 + (place - 1 + round) % (places - 1);
    };
    for (std::size_t i = 0; i < places / 2; ++i) {
      const std::size_t a = std::min(at(i), at(places - 1 - i));
      const std::size_t b = std::max(at(i), at(places - 1 - i));
      if (b < count) pairs.emplace_back(a, b);
    }
  }
  return rounds;
}

}  // namespace sortie::launcher::check
