// Which rank holds which share of a checkpoint in memory, and which snapshot a restart takes: pure
// functions of what all ranks know alike.
//
// Data-parallel replicas have the same state, so nothing has to travel for a second copy: share r
// is written by rank r, and once more by a rank of the next host, from its own replica.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trainer/checkpoint/memory_share.h"

namespace sortie::trainer {

/// Hosts, told apart by what each rank names as its own: numbered in the order of their first rank.
class MemoryHosts {
 public:
  explicit MemoryHosts(const std::vector<std::string>& host_of_rank);

  std::size_t ranks() const { return host_of_.size(); }
  std::size_t hosts() const { return ranks_of_.size(); }
  std::size_t host_of(std::size_t rank) const { return host_of_[rank]; }
  const std::vector<std::size_t>& ranks_of(std::size_t host) const { return ranks_of_[host]; }
  /// The rank that speaks for its host.
  bool leads(std::size_t rank) const { return ranks_of_[host_of_[rank]].front() == rank; }
  /// The shares that a rank writes, of as many as there are ranks: its own first.
  std::vector<std::size_t> shares_of(std::size_t rank) const;
  /// Those of all ranks of a host.
  std::vector<std::size_t> shares_on(std::size_t host) const;

 private:
  std::vector<std::size_t> host_of_;
  std::vector<std::vector<std::size_t>> ranks_of_;
};

/// A copy of a share that a host has sealed.
struct ShareCopy {
  std::size_t host = 0;
  ShareName name{};
  std::int64_t step = 0, attempt = 0;
  std::string sha256{};
  auto operator<=>(const ShareCopy&) const = default;
};

/// For the way from rank to rank.
std::string serialize(const std::vector<ShareCopy>& copies);
std::vector<ShareCopy> parse_share_copies(const std::string& text);

/// A snapshot of which every share is there: its copies by share.
struct MemorySnapshot {
  std::int64_t step = 0, attempt = 0;
  std::size_t count = 1;
  char slot = 'a';
  std::vector<std::vector<ShareCopy>> copies{};

  ShareName name_of(std::size_t share) const { return {share, count, slot}; }
};

struct MemoryChoice {
  std::optional<MemorySnapshot> snapshot{};
  std::vector<std::string> refused{};  // newer ones, and why: for people
};

/// The newest snapshot after step `after` that is whole, without the copies in `bad`. One whose
/// copies of a share differ is refused: replicas were not equal, and nobody knows which is right.
MemoryChoice choose_snapshot(const std::vector<ShareCopy>& copies, const std::set<ShareCopy>& bad,
                             std::int64_t after);

}  // namespace sortie::trainer
