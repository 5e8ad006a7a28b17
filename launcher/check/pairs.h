// Who reaches out to whom in the reachability check.
#pragma once

#include <cstdint>
#include <vector>

namespace sortie::launcher::check {

inline constexpr std::size_t kAllPairsUpTo = 32;
inline constexpr std::size_t kRandomPeers = 4;

/// For each of `count` hosts the others that it connects to: all of them up to 32 hosts; beyond
/// that the next one (a ring, so that every host is on both ends) and a few random ones.
std::vector<std::vector<std::size_t>> choose_peers(std::size_t count, std::uint64_t seed);

}  // namespace sortie::launcher::check
