// Which hosts connect to which others in the reachability check.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sortie::launcher::check {

inline constexpr std::size_t kAllPairsUpTo = 32;
inline constexpr std::size_t kRandomPeers = 4;

/// Returns for each of `count` hosts the hosts that it connects to. Up to kAllPairsUpTo hosts: all
/// others. Beyond: the next one (a ring, so that each host is once on each end) and kRandomPeers
/// random ones.
std::vector<std::vector<std::size_t>> choose_peers(std::size_t count, std::uint64_t seed);

/// The same within each site. `sites`: the site of each host.
std::vector<std::vector<std::size_t>> choose_site_peers(const std::vector<std::string>& sites,
                                                        std::uint64_t seed);

/// Returns all pairs of `count` hosts, in rounds in which each host occurs at most once: (0, 3) (1,
/// 2), then (0, 1) (2, 3), ...
std::vector<std::vector<std::pair<std::size_t, std::size_t>>> pair_rounds(std::size_t count);

}  // namespace sortie::launcher::check
