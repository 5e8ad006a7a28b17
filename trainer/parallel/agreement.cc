#include "trainer/parallel/agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace sortie::trainer {

std::string_view collective_name(Collective collective) {
  switch (collective) {
    case Collective::all_reduce_sum:
      return "all-reduce";
    case Collective::all_reduce_max:
      return "all-reduce (max)";
    case Collective::reduce_scatter_sum:
      return "reduce-scatter";
    case Collective::reduce_scatter_max:
      return "reduce-scatter (max)";
    case Collective::all_gather:
      return "all-gather";
    case Collective::broadcast:
      return "broadcast";
    case Collective::all_to_all:
      return "all-to-all";
    case Collective::exchange:
      return "exchange";
    case Collective::barrier:
      return "barrier";
    case Collective::split:
      return "split";
    case Collective::all_gather_text:
      return "all-gather of text";
  }
  return "?";
}

std::string Signature::to_string() const {
  std::string text = fmt::format("{} {}", collective_name(collective), sequence);
  if (collective == Collective::barrier || collective == Collective::split ||
      collective == Collective::all_gather_text)
    return text;
  if (collective == Collective::all_to_all || collective == Collective::exchange)
    return text + fmt::format(" of {}", dtype_name(static_cast<DType>(dtype)));
  text += fmt::format(" of {} {}", elements, dtype_name(static_cast<DType>(dtype)));
  if (root >= 0) text += fmt::format(" from rank {}", root);
  return text;
}

std::string describe_difference(const std::vector<Signature>& all,
                                const std::vector<int>& world_ranks) {
  std::map<std::string, std::vector<int>> ranks_by_text;
  for (std::size_t i = 0; i < all.size(); ++i)
    ranks_by_text[all[i].to_string()].push_back(world_ranks[i]);
  if (ranks_by_text.size() == 1) return {};
  std::vector<std::pair<std::string, std::vector<int>>> kinds(ranks_by_text.begin(),
                                                              ranks_by_text.end());
  // The majority comes last, so that the ranks that differ are named first.
  std::ranges::stable_sort(kinds, {}, [](const auto& kind) { return kind.second.size(); });
  const bool majority =
      kinds[kinds.size() - 1].second.size() > kinds[kinds.size() - 2].second.size();
  std::vector<std::string> parts;
  for (const auto& [text, ranks] : kinds) {
    if (majority && &text == &kinds.back().first)
      parts.push_back(fmt::format("the other ranks are at {}", text));
    else
      parts.push_back(fmt::format("rank{} {} {} at {}", ranks.size() == 1 ? "" : "s",
                                  fmt::join(ranks, ", "), ranks.size() == 1 ? "is" : "are", text));
  }
  return fmt::format("ranks do not issue the same collective: {}", fmt::join(parts, "; "));
}

}  // namespace sortie::trainer
