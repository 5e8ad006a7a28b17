#include "trainer/state/memory_choice.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <sstream>
#include <tuple>

#include "common/base/check.h"

namespace sortie::trainer {

MemoryHosts::MemoryHosts(const std::vector<std::string>& host_of_rank) {
  std::map<std::string, std::size_t> numbers;
  for (std::size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    const std::size_t host = numbers.try_emplace(host_of_rank[rank], numbers.size()).first->second;
    if (host == ranks_of_.size()) ranks_of_.emplace_back();
    ranks_of_[host].push_back(rank);
    host_of_.push_back(host);
  }
}

std::vector<std::size_t> MemoryHosts::shares_of(std::size_t rank) const {
  std::vector<std::size_t> shares = {rank};
  if (hosts() < 2) return shares;
  const std::size_t host = host_of_[rank], before = (host + hosts() - 1) % hosts();
  const auto& own = ranks_of_[host];
  const std::size_t place = static_cast<std::size_t>(std::ranges::find(own, rank) - own.begin());
  const auto& theirs = ranks_of_[before];
  for (std::size_t i = place; i < theirs.size(); i += own.size()) shares.push_back(theirs[i]);
  return shares;
}

std::vector<std::size_t> MemoryHosts::shares_on(std::size_t host) const {
  std::vector<std::size_t> shares;
  for (const std::size_t rank : ranks_of_[host])
    for (const std::size_t share : shares_of(rank)) shares.push_back(share);
  return shares;
}

std::string serialize(const std::vector<ShareCopy>& copies) {
  std::string text;
  for (const ShareCopy& copy : copies)
    text += fmt::format("{} {} {} {} {} {} {}\n", copy.host, copy.name.index, copy.name.count,
                        copy.name.slot, copy.step, copy.attempt, copy.sha256);
  return text;
}

std::vector<ShareCopy> parse_share_copies(const std::string& text) {
  std::vector<ShareCopy> copies;
  std::istringstream in(text);
  for (ShareCopy copy; in >> copy.host >> copy.name.index >> copy.name.count >> copy.name.slot >>
                       copy.step >> copy.attempt >> copy.sha256;)
    copies.push_back(copy);
  return copies;
}

namespace {

/// Newest first: by step, then by attempt.
using Key = std::tuple<std::int64_t, std::int64_t, std::size_t, char>;

/// Returns why the snapshot cannot be used; "" if it can.
std::string problem_of(const MemorySnapshot& snapshot) {
  std::size_t missing = 0;
  for (const auto& copies : snapshot.copies) {
    if (copies.empty()) ++missing;
    for (const ShareCopy& copy : copies)
      if (copy.sha256 != copies.front().sha256)
        return fmt::format("the copies of share {} differ: replicas were not equal",
                           copy.name.index);
  }
  if (missing == 0) return "";
  return fmt::format("{} of {} shares are on no host", missing, snapshot.count);
}

}  // namespace

MemoryChoice choose_snapshot(const std::vector<ShareCopy>& copies, const std::set<ShareCopy>& bad,
                             std::int64_t after) {
  std::map<Key, MemorySnapshot, std::greater<>> snapshots;
  for (const ShareCopy& copy : copies) {
    if (copy.step <= after || copy.name.index >= copy.name.count) continue;
    MemorySnapshot& snapshot =
        snapshots[{copy.step, copy.attempt, copy.name.count, copy.name.slot}];
    snapshot.step = copy.step;
    snapshot.attempt = copy.attempt;
    snapshot.count = copy.name.count;
    snapshot.slot = copy.name.slot;
    snapshot.copies.resize(snapshot.count);
    if (!bad.contains(copy)) snapshot.copies[copy.name.index].push_back(copy);
  }
  MemoryChoice choice;
  for (auto& [key, snapshot] : snapshots) {
    std::string problem = problem_of(snapshot);
    if (problem.empty()) {
      choice.snapshot = std::move(snapshot);
      break;
    }
    choice.refused.push_back(
        fmt::format("step {} in memory is passed over: {}", snapshot.step, problem));
  }
  return choice;
}

}  // namespace sortie::trainer
