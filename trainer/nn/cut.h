// How a parameter may be cut over a group of ranks, and the blocks that one of them then has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "trainer/tensor/tensor.h"

namespace sortie::trainer {

/// A run of rows of a parameter that belongs together ("q", "k", "v", "gate", "up"): what tensor
/// parallelism cuts each by itself, and what import and export take apart.
struct Segment {
  std::string name;
  std::int64_t rows = 0;
  std::int64_t unit = 1;  // rows that stay together when the segment is cut: those of a head
  /// Where there are fewer units than parts, each is the same on a run of parts: key-value heads.
  bool repeats = false;
};

/// Which of the two grids of ranks cuts and reduces a parameter: that of dense layers or that of
/// the routed experts.
enum class ReduceGroup { dense, expert };

/// One of the routed experts of a mixture, which ranks share out whole, in their order.
struct ExpertPlace {
  std::int64_t index = 0, count = 1;
};

struct CutRule {
  std::optional<int> axis{};  // the dimension that is cut; none: every rank has the whole
  ReduceGroup group = ReduceGroup::dense;
  /// Of what every rank has whole: its gradient has to be summed over the group that cuts, where
  /// sequence parallelism gives a rank its own positions,
  bool partial_gradient = false;
  /// or always: it is of the rank's own heads or columns.
  bool partial_always = false;
  /// Rows that are missing to equal parts exist in the last parts' memory only, as zeros.
  bool pads = false;
  /// The expert that it belongs to: ranks that have other ones have nothing of it.
  ExpertPlace expert{};
};

/// One part of `count` equal ones.
struct CutPlace {
  int index = 0, count = 1;
};
/// Of a rank, in each group.
struct CutPlaces {
  CutPlace dense{}, expert{};
  CutPlace owner{};  // which of the routed experts it has
  CutPlace of(ReduceGroup group) const { return group == ReduceGroup::dense ? dense : expert; }
  /// The number of experts is a multiple of that of the ranks that share them out.
  bool has(const ExpertPlace& one) const {
    return one.index * owner.count / one.count == owner.index || one.count == 1;
  }
};

/// Rows [row, row + rows) and columns [column, column + columns) of a matrix. A vector has one
/// column.
struct GlobalBlock {
  std::int64_t row = 0, rows = 0, column = 0, columns = 1;
  bool repeated = false;  // a lower part has it too, and counts and saves it
  std::int64_t elements() const { return rows * columns; }
  bool operator==(const GlobalBlock&) const = default;
};

/// The blocks of a part, in the order in which they lie in the rank's tensor, each of them dense
/// there: one per segment where rows are cut, else one; none for a part of padding alone. What pads
/// lies behind them. ErrorCode::config where a segment does not
/// divide into that many parts of whole units. `name` opens the message.
Result<std::vector<GlobalBlock>> blocks_of(const std::string& name, const Shape& shape,
                                           const std::vector<Segment>& segments,
                                           const CutRule& rule, CutPlace place);

/// The shape of a rank's tensor.
Shape local_shape(const Shape& shape, const std::vector<Segment>& segments, const CutRule& rule,
                  CutPlace place);

/// Whether `parts` parts have this segment's units in runs.
bool in_runs(const Segment& segment, int parts);
/// Elements of the blocks that no lower part has.
std::int64_t own_elements(const std::vector<GlobalBlock>& blocks);

}  // namespace sortie::trainer
