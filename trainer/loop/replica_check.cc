#include "trainer/loop/replica_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <map>

#include "trainer/ops/copy.h"

namespace sortie::trainer {
namespace {

/// Hash of the state that the ranks of a group have in common.
std::string state_hash(ParameterStore& store, ReduceGroup group) {
  XXH64_hash_t hash = 0;
  const auto add = [&]<class T>(T, const Tensor& values, std::int64_t begin, std::int64_t count) {
    const ops::HostAccess<const T> part(store.context(), values.slice(0, begin, count));
    hash = XXH3_64bits_withSeed(part.data(), part.span().size_bytes(), hash);
  };
  for (const auto& parameter : store.parameters()) {
    const std::int64_t elements = parameter->elements();
    if (store.held_by(*parameter) != group || elements == 0) continue;
    if (store.gathers() && store.keeps_share_of(*parameter)) continue;  // no replica has it
    if (store.keeps_share_of(*parameter)) {
      // Only the values that ops use are whole; masters and moments have no replica.
      const std::int64_t place = store.whole_master_place(*parameter);
      if (place < 0)
        add(bf16(), store.compute_copy(), parameter->offset(), elements);
      else
        add(float(), store.master(), place, elements);
      continue;
    }
    const OwnRun& run = parameter->own_runs().front();
    add(float(), store.master(), run.master, elements);
    if (!parameter->trained() || store.own_momentum()) continue;
    for (const Tensor* moment : {&store.moment1(), &store.moment2()}) {
      if (moment->dtype() == DType::bf16)
        add(bf16(), *moment, run.moment, elements);
      else
        add(float(), *moment, run.moment, elements);
    }
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace

ReplicaDifference find_difference(const Layout& layout, const RankContext& rank,
                                  ParameterStore& store) {
  if (layout.world().size() == 1) return {};
  store.await_values();
  const std::vector<std::string> all =
      layout.world().all_gather(fmt::format("{} {} {}", state_hash(store, ReduceGroup::dense),
                                            state_hash(store, ReduceGroup::expert), rank.host));
  // Replicas are ranks at the same position in the model, and in the experts if these are apart.
  using Ranks = std::vector<ReplicaDifference::Rank>;
  std::map<std::vector<int>, std::map<std::string, Ranks>> ranks_by_place;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const int one = static_cast<int>(i);
    const std::size_t space = all[i].find(' '), second = all[i].find(' ', space + 1);
    const ReplicaDifference::Rank who{one, all[i].substr(second + 1)};
    const auto at = [&](Axis axis) { return layout.mesh().coordinate(one, axis); };
    ranks_by_place[{at(Axis::pipeline), at(Axis::tensor)}][all[i].substr(0, space)].push_back(who);
    if (layout.experts_apart())
      ranks_by_place[{at(Axis::pipeline), at(Axis::expert_tensor), at(Axis::expert)}]
                    [all[i].substr(space + 1, second - space - 1)]
                        .push_back(who);
  }
  ReplicaDifference found;
  for (const auto& [place, ranks_by_hash] : ranks_by_place) {
    if (ranks_by_hash.size() == 1) continue;
    const auto most = std::ranges::max_element(ranks_by_hash, {}, [](const auto& entry) {
                        return entry.second.size();
                      })->second.size();
    const auto leading = std::ranges::count_if(
        ranks_by_hash, [most](const auto& entry) { return entry.second.size() == most; });
    const bool majority = leading == 1;  // with a draw it is unknown which is right
    found.majority = found.majority && majority;
    for (const auto& [hash, ranks] : ranks_by_hash)
      if (!majority || ranks.size() < most)
        found.ranks.insert(found.ranks.end(), ranks.begin(), ranks.end());
  }
  if (found.ranks.empty()) return found;
  std::ranges::sort(found.ranks, {}, &ReplicaDifference::Rank::rank);
  const auto again = std::ranges::unique(found.ranks, {}, &ReplicaDifference::Rank::rank);
  found.ranks.erase(again.begin(), again.end());
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
