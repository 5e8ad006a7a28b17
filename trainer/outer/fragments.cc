#include "trainer/outer/fragments.h"

#include <algorithm>
#include <charconv>

#include "common/base/check.h"

namespace sortie::trainer::outer {

std::int64_t layer_of_name(std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  if (!name.starts_with(kLayers)) return -1;
  name.remove_prefix(kLayers.size());
  std::int64_t layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  return error == std::errc() && end != name.data() + name.size() && *end == '.' ? layer : -1;
}

std::vector<std::vector<PartRange>> cut_into_fragments(const std::vector<PartPiece>& pieces,
                                                       std::int64_t count) {
  SORTIE_CHECK(count >= 1, "{} fragments", count);
  std::vector<std::vector<PartRange>> fragments(static_cast<std::size_t>(count));
  const std::int64_t of_layers = count > 2 ? count - 1 : count;
  for (const PartPiece& piece : pieces) {
    const std::int64_t layer = layer_of_name(piece.name);
    const std::int64_t fragment = layer < 0 ? count - 1 : layer % of_layers;
    std::vector<PartRange>& ranges = fragments[static_cast<std::size_t>(fragment)];
    const PartRange range{piece.at, piece.at + piece.piece.elements()};
    if (!ranges.empty() && ranges.back().end == range.begin)
      ranges.back().end = range.end;
    else
      ranges.push_back(range);
  }
  return fragments;
}

FragmentTimes::FragmentTimes(const config::OuterSettings& settings, std::int64_t of_round)
    : steps(of_round),
      fragments(settings.fragments),
      overlap(
          std::clamp<std::int64_t>(settings.overlap, 0, std::max<std::int64_t>(of_round - 1, 0))) {}

std::int64_t FragmentTimes::ready(std::int64_t fragment) const {
  const std::int64_t product = (fragment + 1) * (steps - overlap);
  return std::max<std::int64_t>((product + fragments - 1) / fragments, 1);
}

}  // namespace sortie::trainer::outer
