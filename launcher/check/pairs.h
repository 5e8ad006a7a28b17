// Who reaches out to whom in the reachability check.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sortie::launcher::check {

inline constexpr std::size_t kAllPairsUpTo = 32;
inline constexpr std::size_t kRandomPeers = 4;

/// For each of `count` hosts the others that it connects to: all of them up to 32 hosts; beyond
/// that the next one (a ring, so that every host is on both ends) and a few random ones.
std::vector<std::vector<std::size_t>> choose_peers(std::size_t count, std::uint64_t seed);

/// The same among the hosts of each site; `sites` has that of each host.
std::vector<std::vector<std::size_t>> choose_site_peers(const std::vector<std::string>& sites,
                                                        std::uint64_t seed);

/// Every two of `count`, in rounds in which nobody is twice: (0, 3) (1, 2), (0, 2) (3, 1), ...
std::vector<std::vector<std::pair<std::size_t, std::size_t>>> pair_rounds(std::size_t count);

}  // namespace sortie::launcher::check
