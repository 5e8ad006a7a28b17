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
  store.await_values();
  XXH64_hash_t hash = 0;
  const auto add = [&]<class T>(const Tensor& buffer, T) {
    const ops::HostAccess<T> values(store.context(), buffer);
    hash = XXH3_64bits_withSeed(values.span().data(), values.span().size_bytes(), hash);
  };
  add(store.whole_master(), float());
  if (!store.sharded()) {
    add(store.moment1(), float());
    add(store.moment2(), float());
  } else if (!store.gathers() && store.compute_copy().defined()) {
    add(store.compute_copy(), bf16());
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace

ReplicaDifference find_difference(const Layout& layout, const RankContext& rank,
                                  ParameterStore& store) {
  if (layout.world().size() == 1) return {};
  const std::vector<std::string> all =
      layout.world().all_gather(fmt::format("{} {}", state_hash(store), rank.host));
  // Replicas are ranks at one place of the model.
  using Ranks = std::vector<ReplicaDifference::Rank>;
  std::map<std::pair<int, int>, std::map<std::string, Ranks>> ranks_by_place;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const int one = static_cast<int>(i);
    const std::size_t space = all[i].find(' ');
    ranks_by_place[{layout.mesh().coordinate(one, Axis::pipeline),
                    layout.mesh().coordinate(one, Axis::tensor)}][all[i].substr(0, space)]
        .push_back({one, all[i].substr(space + 1)});
  }
  ReplicaDifference found;
  for (const auto& [place, ranks_by_hash] : ranks_by_place) {
    if (ranks_by_hash.size() == 1) continue;
    const auto most = std::ranges::max_element(ranks_by_hash, {}, [](const auto& entry) {
                        return entry.second.size();
                      })->second.size();
    const auto leading = std::ranges::count_if(
        ranks_by_hash, [most](const auto& entry) { return entry.second.size() == most; });
    const bool majority = leading == 1;  // with a draw nobody is known to be right
    found.majority = found.majority && majority;
    for (const auto& [hash, ranks] : ranks_by_hash)
      if (!majority || ranks.size() < most)
        found.ranks.insert(found.ranks.end(), ranks.begin(), ranks.end());
  }
  if (found.ranks.empty()) return found;
  std::vector<std::string> names;
  for (const ReplicaDifference::Rank& one : found.ranks)
    names.push_back(one.host.empty() ? fmt::format("rank {}", one.rank)
                                     : fmt::format("rank {} ({})", one.rank, one.host));
  found.text =
      fmt::format("{} {}", fmt::join(names, ", "),
                  found.majority ? "from the other ranks" : "do not agree, and no majority does");
  return found;
}

Error difference_error(const ReplicaDifference& difference, std::int64_t step) {
  return {ErrorCode::diverged,
          fmt::format("step {}: replicas differ: {}; check the memory of {} hosts and start again "
                      "from a checkpoint of before",
                      step, difference.text, difference.majority ? "those" : "these")};
}

Result<> check_initial_state(const Layout& layout, const RankContext& rank, ParameterStore& store) {
  const ReplicaDifference difference = find_difference(layout, rank, store);
  if (difference.text.empty()) return {};
  return fail(ErrorCode::diverged,
              fmt::format("start: initial weights differ: {}; every rank computes the same ones "
                          "from trainer.seed, so check the memory and the CPUs of {} hosts",
                          difference.text, difference.majority ? "those" : "these"));
}

}  // namespace sortie::trainer
