#include "trainer/checkpoint/piece.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>

#include "common/base/check.h"

namespace sortie::trainer {
namespace {

std::int64_t elements_of(const Dims& extent) {
  const auto elements = num_elements(extent);
  SORTIE_CHECK(elements.has_value());
  return *elements;
}

bool boxes_meet(const Piece& a, const Piece& b) {
  for (std::size_t d = 0; d < a.offset.size(); ++d)
    if (std::max(a.offset[d], b.offset[d]) >=
        std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]))
      return false;
  return true;
}

/// Strides of a dense box, in elements.
Dims strides_of(const Dims& extent) {
  Dims strides(extent.size(), 1);
  for (std::size_t d = extent.size(); d-- > 1;) strides[d - 1] = strides[d] * extent[d];
  return strides;
}

}  // namespace

Piece Piece::whole(const Dims& shape) {
  return box(Dims(shape.size(), 0), shape);
}

Piece Piece::box(Dims offset, Dims extent) {
  const std::int64_t end = elements_of(extent);
  return Piece{std::move(offset), std::move(extent), 0, end};
}

Piece Piece::interval(const Dims& shape, std::int64_t begin, std::int64_t end) {
  return Piece{Dims(shape.size(), 0), shape, begin, end};
}

Dims Piece::local_shape() const {
  return begin == 0 && end == elements_of(extent) ? extent : Dims{elements()};
}

std::string Piece::to_string() const {
  std::string text = "[";
  for (std::size_t d = 0; d < offset.size(); ++d)
    text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", offset[d], offset[d] + extent[d]);
  return text + fmt::format("] elements {} to {}", begin, end);
}

std::string piece_problem(const Piece& piece, const Dims& shape) {
  if (!num_elements(shape)) return "the tensor has an impossible shape";
  if (piece.offset.size() != shape.size() || piece.extent.size() != shape.size())
    return fmt::format("has {} dimensions, the tensor {}", piece.offset.size(), shape.size());
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (piece.offset[d] < 0 || piece.extent[d] < 0 || piece.offset[d] > shape[d] ||
        piece.extent[d] > shape[d] - piece.offset[d])
      return fmt::format("reaches from {} by {} in dimension {}, which has {}", piece.offset[d],
                         piece.extent[d], d, shape[d]);
  const std::int64_t elements = elements_of(piece.extent);
  if (piece.begin < 0 || piece.begin > piece.end || piece.end > elements)
    return fmt::format("holds elements {} to {} of a box of {}", piece.begin, piece.end, elements);
  return {};
}

void for_each_shared_run(const Piece& a, const Piece& b,
                         const std::function<void(std::int64_t, std::int64_t, std::int64_t)>& f) {
  SORTIE_CHECK(a.offset.size() == b.offset.size());
  if (a.elements() == 0 || b.elements() == 0 || !boxes_meet(a, b)) return;
  auto emit = [&](std::int64_t at_a, std::int64_t at_b, std::int64_t length) {
    // Positions in the boxes; what is outside of an interval is cut off here.
    const std::int64_t skip = std::max({a.begin - at_a, b.begin - at_b, std::int64_t{0}});
    const std::int64_t stop = std::min({a.end - at_a, b.end - at_b, length});
    if (skip < stop) f(at_a + skip - a.begin, at_b + skip - b.begin, stop - skip);
  };
  if (a.offset.empty()) return emit(0, 0, 1);

  // Dimensions after `last` are equal in both boxes, so they continue a run of dimension `last`.
  std::size_t last = a.offset.size() - 1;
  while (last > 0 && a.offset[last] == b.offset[last] && a.extent[last] == b.extent[last]) --last;
  const Dims strides_a = strides_of(a.extent);
  const Dims strides_b = strides_of(b.extent);
  Dims low(last + 1);
  Dims high(last + 1);
  for (std::size_t d = 0; d <= last; ++d) {
    low[d] = std::max(a.offset[d], b.offset[d]);
    high[d] = std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]);
  }
  const std::int64_t length = (high[last] - low[last]) * strides_a[last];
  Dims at = low;
  for (;;) {
    std::int64_t at_a = 0;
    std::int64_t at_b = 0;
    for (std::size_t d = 0; d <= last; ++d) {
      at_a += (at[d] - a.offset[d]) * strides_a[d];
      at_b += (at[d] - b.offset[d]) * strides_b[d];
    }
    emit(at_a, at_b, length);
    std::size_t d = last;
    while (d-- > 0) {  // the next row: count up the dimensions before `last`
      if (++at[d] < high[d]) break;
      at[d] = low[d];
      if (d == 0) return;
    }
    if (last == 0) return;
  }
}

std::string tiling_problem(const std::vector<Piece>& pieces, const Dims& shape) {
  std::int64_t sum = 0;
  std::map<std::pair<Dims, Dims>, std::vector<const Piece*>> boxes;
  const auto total = num_elements(shape);
  if (!total) return "the tensor has an impossible shape";
  for (const Piece& piece : pieces) {
    if (const std::string problem = piece_problem(piece, shape); !problem.empty())
      return fmt::format("piece {}: {}", piece.to_string(), problem);
    if (piece.elements() == 0) continue;
    if (piece.elements() > *total - sum)
      return fmt::format("pieces hold more than the {} elements of the tensor", *total);
    sum += piece.elements();
    boxes[{piece.offset, piece.extent}].push_back(&piece);
  }
  if (sum != *total) return fmt::format("pieces hold {} of {} elements", sum, *total);
  auto overlap = [](const Piece& a, const Piece& b) {
    return fmt::format("pieces {} and {} overlap", a.to_string(), b.to_string());
  };
  for (auto& [box, group] : boxes) {
    std::sort(group.begin(), group.end(),
              [](const Piece* a, const Piece* b) { return a->begin < b->begin; });
    for (std::size_t i = 1; i < group.size(); ++i)
      if (group[i]->begin < group[i - 1]->end) return overlap(*group[i - 1], *group[i]);
  }
  for (auto first = boxes.begin(); first != boxes.end(); ++first)
    for (auto second = std::next(first); second != boxes.end(); ++second) {
      if (!boxes_meet(*first->second.front(), *second->second.front())) continue;
      for (const Piece* a : first->second)
        for (const Piece* b : second->second) {
          bool shared = false;
          for_each_shared_run(*a, *b, [&](auto, auto, auto) { shared = true; });
          if (shared) return overlap(*a, *b);
        }
    }
  return {};
}

}  // namespace sortie::trainer
