#include "trainer/loop/replica_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <map>

#include "trainer/ops/copy.h"

namespace sortie::trainer {
namespace {

std::string state_hash(ParameterStore& store) {
  XXH64_hash_t hash = 0;
  for (const Tensor& buffer : {store.master(), store.moment1(), store.moment2()}) {
    const ops::HostAccess<float> values(store.context(), buffer);
    hash = XXH3_64bits_withSeed(values.span().data(), values.span().size_bytes(), hash);
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace

namespace {

/// Which ranks hold another state than most, as "rank 2 (host) from the other ranks"; empty when
/// all are equal. Collective.
struct Difference {
  std::string text;
  bool majority = true;  // else nobody is known to be right
};
Difference find_difference(Communicator& communicator, const RankContext& rank,
                           ParameterStore& store) {
  if (communicator.size() == 1) return {};
  const std::vector<std::string> all =
      communicator.all_gather(fmt::format("{} {}", state_hash(store), rank.host));
  std::map<std::string, std::vector<std::string>> ranks_by_hash;  // "rank 3 (host)"
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t space = all[i].find(' ');
    const std::string host = all[i].substr(space + 1);
    ranks_by_hash[all[i].substr(0, space)].push_back(
        host.empty() ? fmt::format("rank {}", i) : fmt::format("rank {} ({})", i, host));
  }
  if (ranks_by_hash.size() == 1) return {};
  const auto most = std::ranges::max_element(ranks_by_hash, {}, [](const auto& entry) {
                      return entry.second.size();
                    })->second.size();
  std::vector<std::string> odd;
  std::size_t leading = 0;  // values held by that many ranks: with a draw nobody is right
  for (const auto& [hash, ranks] : ranks_by_hash) {
    if (ranks.size() == most) ++leading;
    if (ranks.size() < most) odd.insert(odd.end(), ranks.begin(), ranks.end());
  }
  if (leading > 1) {
    odd.clear();
    for (const auto& [hash, ranks] : ranks_by_hash)
      odd.insert(odd.end(), ranks.begin(), ranks.end());
  }
  return {fmt::format("{} {}", fmt::join(odd, ", "),
                      leading > 1 ? "do not agree, and no majority does" : "from the other ranks"),
          leading == 1};
}

}  // namespace

Result<> check_replicas(Communicator& communicator, const RankContext& rank, ParameterStore& store,
                        std::int64_t step) {
  const Difference difference = find_difference(communicator, rank, store);
  if (difference.text.empty()) return {};
  return fail(
      ErrorCode::diverged,
      fmt::format("step {}: replicas differ: {}; check the memory of {} hosts and start again "
                  "from a checkpoint of before",
                  step, difference.text, difference.majority ? "those" : "these"));
}

Result<> check_initial_state(Communicator& communicator, const RankContext& rank,
                             ParameterStore& store) {
  const Difference difference = find_difference(communicator, rank, store);
  if (difference.text.empty()) return {};
  return fail(ErrorCode::diverged,
              fmt::format("start: initial weights differ: {}; every rank computes the same ones "
                          "from trainer.seed, so check the memory and the CPUs of {} hosts",
                          difference.text, difference.majority ? "those" : "these"));
}

}  // namespace sortie::trainer
