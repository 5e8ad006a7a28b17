#include "trainer/tokenizer/spm_trie.h"

#include <algorithm>

namespace sortie::trainer::spm {
namespace {

/// Entries [begin, end) share their first `depth` bytes, which lead to `place`.
struct Range {
  std::size_t begin, end, depth;
  std::uint32_t place;
};

}  // namespace

PieceTrie::PieceTrie(std::vector<std::pair<std::string_view, std::int32_t>> entries) {
  if (entries.empty()) return;
  std::ranges::sort(entries);
  nodes_.resize(1024);
  nodes_[0].parent = 0;  // the root; no step leads to it, as labels are above 0
  std::uint32_t first_free = 1;
  std::vector<Range> open = {{0, entries.size(), 0, 0}};
  std::vector<Range> children;
  while (!open.empty()) {
    Range range = open.back();
    open.pop_back();
    if (entries[range.begin].first.size() == range.depth)
      nodes_[range.place].value = entries[range.begin++].second;
    children.clear();
    const auto label_at = [&](std::size_t i) {
      return static_cast<unsigned char>(entries[i].first[range.depth]);
    };
    for (std::size_t i = range.begin; i < range.end; ++i)
      if (children.empty() || label_at(i) != label_at(children.back().begin))
        children.push_back({i, i + 1, range.depth + 1, 0});
      else
        children.back().end = i + 1;
    if (children.empty()) continue;
    while (first_free < nodes_.size() && nodes_[first_free].parent != kNoParent) ++first_free;
    const std::uint32_t least = label_at(children.front().begin);
    for (std::uint32_t base = first_free > least ? first_free - least : 0;; ++base) {
      if (base + 256 >= nodes_.size()) nodes_.resize(2 * nodes_.size() + 256);
      const bool fits = std::ranges::all_of(children, [&](const Range& child) {
        return nodes_[base + label_at(child.begin)].parent == kNoParent;
      });
      if (!fits) continue;
      nodes_[range.place].base = base;
      for (Range& child : children) {
        child.place = base + label_at(child.begin);
        nodes_[child.place].parent = range.place;
        open.push_back(child);
      }
      break;
    }
  }
}

std::size_t PieceTrie::longest_prefix(std::string_view text) const {
  std::size_t longest = 0;
  if (empty()) return 0;
  Place place = 0;
  for (std::size_t i = 0; i < text.size() && step(place, text[i]); ++i)
    if (value(place) >= 0) longest = i + 1;
  return longest;
}

}  // namespace sortie::trainer::spm
