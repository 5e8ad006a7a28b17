#include "runner/pmix/job_map.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "common/base/check.h"

namespace sortie::runner {
namespace {

constexpr std::uint32_t kNoHost = ~0u;
constexpr std::uint32_t kMaxRanks = 1u << 20;  // bounds the allocation for a wrong world_size

/// Parses "0,1,2".
Result<std::vector<std::uint32_t>> parse_ranks(const std::string& text) {
  std::vector<std::uint32_t> ranks;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    std::uint32_t rank = 0;
    const auto [next, error] = std::from_chars(at, end, rank);
    if (error != std::errc{} || (next != end && *next != ',') || (next != end && next + 1 == end))
      return fail(ErrorCode::protocol, fmt::format("PmixSetup: '{}' is no list of ranks", text));
    ranks.push_back(rank);
    at = next == end ? end : next + 1;
  }
  return ranks;
}

}  // namespace

Result<JobMap> JobMap::from_setup(const wire::PmixSetup& setup) {
  const auto wrong = [](std::string text) {
    return fail(ErrorCode::protocol, "PmixSetup: " + std::move(text));
  };
  if (setup.nspace.empty() || setup.nspace.size() > 255)
    return wrong("nspace must have 1 to 255 bytes");
  if (setup.tmp_dir.empty() || setup.tmp_dir[0] != '/') return wrong("tmp_dir must be absolute");
  if (setup.world_size == 0 || setup.world_size > kMaxRanks)
    return wrong(fmt::format("world_size is {}", setup.world_size));
  if (setup.node_hosts.size() != setup.node_ranks.size())
    return wrong(fmt::format("{} hosts but {} lists of ranks", setup.node_hosts.size(),
                             setup.node_ranks.size()));
  JobMap job;
  job.hosts = setup.node_hosts;
  job.host_of.assign(setup.world_size, kNoHost);
  job.my_host = kNoHost;
  std::set<std::string> seen;
  for (std::uint32_t host = 0; host < job.hosts.size(); ++host) {
    const std::string& name = job.hosts[host];
    if (name.empty() || name.find_first_of(",;[]") != std::string::npos ||
        !seen.insert(name).second)
      return wrong(fmt::format("host name '{}' is empty, not plain or given twice", name));
    if (name == setup.host) job.my_host = host;
    SORTIE_ASSIGN_OR_RETURN(auto ranks, parse_ranks(setup.node_ranks[host]));
    for (std::uint32_t rank : ranks) {
      if (rank >= setup.world_size || job.host_of[rank] != kNoHost)
        return wrong(fmt::format("rank {} of host '{}' is beyond world_size {} or given twice",
                                 rank, name, setup.world_size));
      job.host_of[rank] = host;
    }
    std::ranges::sort(ranks);
    job.ranks.push_back(std::move(ranks));
  }
  if (job.my_host == kNoHost)
    return wrong(fmt::format("host '{}' is not one of node_hosts", setup.host));
  if (const auto missing = std::ranges::find(job.host_of, kNoHost); missing != job.host_of.end())
    return wrong(fmt::format("rank {} is on no host", missing - job.host_of.begin()));
  std::vector<std::uint32_t> local = setup.local_ranks;
  std::ranges::sort(local);
  if (local != job.ranks[job.my_host])
    return wrong(fmt::format("local_ranks are not the ranks of host '{}'", setup.host));
  if (local.empty()) return wrong("no local ranks");
  return job;
}

std::string fold_ranks(std::vector<std::uint32_t> ranks) {
  std::ranges::sort(ranks);
  ranks.erase(std::ranges::unique(ranks).begin(), ranks.end());
  std::string text;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += first == last ? fmt::format("{}", ranks[first])
                          : fmt::format("{}-{}", ranks[first], ranks[last]);
    first = last + 1;
  }
  return text;
}

FenceNames::Name FenceNames::next(const JobMap& job, const std::vector<std::uint32_t>& ranks) {
  std::set<std::uint32_t> hosts;
  for (std::uint32_t rank : ranks) {
    SORTIE_CHECK(rank < job.world_size(), "rank {}", rank);
    hosts.insert(job.host_of[rank]);
  }
  const std::string folded = fold_ranks(ranks);
  return {fmt::format("{}#{}", folded, ++count_[folded]), static_cast<std::uint32_t>(hosts.size())};
}

}  // namespace sortie::runner
