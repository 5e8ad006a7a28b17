#include "trainer/nn/cut.h"

#include <fmt/core.h>

#include <algorithm>

#include "common/base/check.h"

namespace sortie::trainer {

Result<std::vector<GlobalBlock>> blocks_of(const std::string& name, const Shape& shape,
                                           const std::vector<Segment>& segments,
                                           const CutRule& rule, CutPlace place) {
  SORTIE_CHECK(shape.dims() == 1 || shape.dims() == 2, "{} has {} dimensions", name, shape.dims());
  SORTIE_CHECK(place.count >= 1 && place.index >= 0 && place.index < place.count, "part {} of {}",
               place.index, place.count);
  const std::int64_t rows = shape[0], columns = shape.dims() == 2 ? shape[1] : 1;
  if (!rule.axis || place.count == 1) return std::vector{GlobalBlock{0, rows, 0, columns}};
  SORTIE_CHECK(*rule.axis >= 0 && *rule.axis < shape.dims(), "{}: cut along dimension {}", name,
               *rule.axis);
  const auto refused = [&](const std::string& what) {
    return fail(ErrorCode::config, fmt::format("{}: {} can not be cut into {} equal parts; choose "
                                               "a size of the group that divides them",
                                               name, what, place.count));
  };
  if (*rule.axis == 1) {
    if (columns % place.count != 0) return refused(fmt::format("its {} columns", columns));
    const std::int64_t width = columns / place.count;
    return std::vector{GlobalBlock{0, rows, place.index * width, width}};
  }
  if (rule.pads) {
    SORTIE_CHECK(segments.empty(), "{}: padded rows in segments", name);
    const std::int64_t each = (rows + place.count - 1) / place.count;
    const std::int64_t first = std::min(each * place.index, rows);
    const std::int64_t own = std::min(each, rows - first);
    if (own == 0) return std::vector<GlobalBlock>{};
    return std::vector{GlobalBlock{first, own, 0, columns}};
  }
  std::vector<GlobalBlock> blocks;
  std::int64_t first = 0;
  const std::vector<Segment> whole = {{"", rows}};
  for (const Segment& segment : segments.empty() ? whole : segments) {
    if (in_runs(segment, place.count)) {
      const std::int64_t run = place.count / (segment.rows / segment.unit);
      blocks.push_back({first + place.index / run * segment.unit, segment.unit, 0, columns,
                        /*repeated=*/place.index % run != 0});
    } else if (segment.rows % (segment.unit * place.count) == 0) {
      const std::int64_t own = segment.rows / place.count;
      blocks.push_back({first + place.index * own, own, 0, columns});
    } else {
      return refused(fmt::format("the {} rows{}{} in units of {}", segment.rows,
                                 segment.name.empty() ? "" : " of segment ", segment.name,
                                 segment.unit));
    }
    first += segment.rows;
  }
  SORTIE_CHECK(first == rows, "{}: segments have {} of {} rows", name, first, rows);
  return blocks;
}

bool in_runs(const Segment& segment, int parts) {
  const std::int64_t units = segment.rows / segment.unit;
  return segment.repeats && units < parts && segment.rows % segment.unit == 0 && parts % units == 0;
}

std::int64_t own_elements(const std::vector<GlobalBlock>& blocks) {
  std::int64_t sum = 0;
  for (const GlobalBlock& block : blocks) sum += block.repeated ? 0 : block.elements();
  return sum;
}

Shape local_shape(const Shape& shape, const std::vector<Segment>& segments, const CutRule& rule,
                  CutPlace place) {
  if (!rule.axis) return shape;
  std::int64_t cut = (shape[*rule.axis] + place.count - 1) / place.count;
  if (*rule.axis == 0 && !segments.empty()) {
    cut = 0;
    for (const Segment& segment : segments)
      cut += in_runs(segment, place.count) ? segment.unit : segment.rows / place.count;
  }
  if (shape.dims() == 1) return {cut};
  return *rule.axis == 0 ? Shape{cut, shape[1]} : Shape{shape[0], cut};
}

}  // namespace sortie::trainer
