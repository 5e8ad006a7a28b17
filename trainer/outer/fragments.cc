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

namespace {

constexpr std::int64_t kCut = 32;  // values; the usual block of wire formats with scales

/// Sorts the ranges and merges adjacent ones.
void join(std::vector<PartRange>& ranges) {
  std::ranges::sort(ranges, {}, &PartRange::begin);
  std::vector<PartRange> joined;
  for (const PartRange& range : ranges) {
    if (!joined.empty() && joined.back().end == range.begin)
      joined.back().end = range.end;
    else
      joined.push_back(range);
  }
  ranges = std::move(joined);
}

}  // namespace

std::vector<std::vector<PartRange>> cut_into_fragments(const std::vector<PartPiece>& pieces,
                                                       std::int64_t count) {
  SORTIE_CHECK(count >= 1, "{} fragments", count);
  std::vector<std::vector<PartRange>> fragments(static_cast<std::size_t>(count));
  std::vector<std::int64_t> sizes(fragments.size());
  std::int64_t total = 0;
  const auto add = [&](std::size_t fragment, std::int64_t begin, std::int64_t elements) {
    fragments[fragment].push_back({begin, begin + elements});
    sizes[fragment] += elements;
  };
  for (const PartPiece& piece : pieces) {
    total += piece.piece.elements();
    if (const std::int64_t layer = layer_of_name(piece.name); layer >= 0)
      add(static_cast<std::size_t>(layer % count), piece.at, piece.piece.elements());
  }
  const std::int64_t target = (total + count - 1) / count;
  for (const PartPiece& piece : pieces) {
    if (layer_of_name(piece.name) >= 0) continue;
    for (std::int64_t done = 0; done < piece.piece.elements();) {
      const std::int64_t left = piece.piece.elements() - done;
      const auto least = std::ranges::min_element(sizes);
      const std::int64_t lacks = (target - *least) / kCut * kCut;
      const std::int64_t taken = lacks > 0 ? std::min(left, lacks) : left;
      add(static_cast<std::size_t>(least - sizes.begin()), piece.at + done, taken);
      done += taken;
    }
  }
  for (std::vector<PartRange>& ranges : fragments) join(ranges);
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
