// Decides which rank holds which share of a checkpoint in memory, and which snapshot a restart
// uses: pure functions of data that is the same on all ranks.
//
// Data-parallel replicas have the same state, so a second copy needs no communication: share r is
// written by rank r, and also by a rank of the next host, from its own replica.
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

/// The hosts of the ranks, identified by the name that each rank gives, and numbered in the order
/// of their first rank.
class MemoryHosts {
 public:
  explicit MemoryHosts(const std::vector<std::string>& host_of_rank);

  std::size_t ranks() const { return host_of_.size(); }
  std::size_t hosts() const { return ranks_of_.size(); }
  std::size_t host_of(std::size_t rank) const { return host_of_[rank]; }
  const std::vector<std::size_t>& ranks_of(std::size_t host) const { return ranks_of_[host]; }
  /// Whether the rank acts for its host.
  bool leads(std::size_t rank) const { return ranks_of_[host_of_[rank]].front() == rank; }
  /// Returns the shares that a rank writes, out of as many as there are ranks: its own first.
  std::vector<std::size_t> shares_of(std::size_t rank) const;
  /// Returns the shares that the ranks of a host write.
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

/// Conversion to and from text, to be sent from rank to rank.
std::string serialize(const std::vector<ShareCopy>& copies);
std::vector<ShareCopy> parse_share_copies(const std::string& text);

/// A snapshot with its copies, by share. It is complete if every share has one.
struct MemorySnapshot {
  std::int64_t step = 0, attempt = 0;
  std::size_t count = 1;
  char slot = 'a';
  std::vector<std::vector<ShareCopy>> copies{};

  ShareName name_of(std::size_t share) const { return {share, count, slot}; }
};

struct MemoryChoice {
  std::optional<MemorySnapshot> snapshot{};
  std::vector<std::string> refused{};  // newer ones that are incomplete, and why; for messages
};

/// Chooses the newest complete snapshot after step `after`, ignoring the copies in `bad`. Refuses
/// one in which copies of a share differ: replicas were not equal, and none of them is known to be
/// right.
MemoryChoice choose_snapshot(const std::vector<ShareCopy>& copies, const std::set<ShareCopy>& bad,
                             std::int64_t after);

}  // namespace sortie::trainer
