// How a parameter may be cut over a group of ranks, and the blocks that one rank then holds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "trainer/tensor/tensor.h"

namespace sortie::trainer {

/// A named run of rows of a parameter ("q", "k", "v", "gate", "up"). Tensor parallelism cuts each
/// segment separately; import and export split parameters by segment.
struct Segment {
  std::string name;
  std::int64_t rows = 0;
  std::int64_t unit = 1;  // rows that stay together when the segment is cut: those of a head
  /// If there are fewer units than parts, each unit is replicated on a run of parts: key-value
  /// heads.
  bool repeats = false;
};

/// Which of the two grids of ranks cuts a parameter and reduces its gradient: that of dense layers
/// or that of the routed experts.
enum class ReduceGroup { dense, expert };

/// One of the routed experts of a mixture. Experts are distributed over ranks whole and in order.
struct ExpertPlace {
  std::int64_t index = 0, count = 1;
};

struct CutRule {
  std::optional<int> axis{};  // the dimension that is cut; none: every rank has the whole parameter
  ReduceGroup group = ReduceGroup::dense;
  /// Every rank has the whole parameter; with sequence parallelism its gradient must be summed over
  /// the group that cuts, because each rank has its own positions.
  bool partial_gradient = false;
  /// The gradient must be summed in any case, because each rank has that of its own heads or
  /// columns.
  bool partial_always = false;
  /// Parts are rounded up to equal sizes; the missing rows exist only in the memory of the last
  /// parts, as zeros.
  bool pads = false;
  /// The expert that the parameter belongs to. Ranks that have other experts hold nothing of it.
  ExpertPlace expert{};
};

/// Part `index` of `count` equal parts.
struct CutPlace {
  int index = 0, count = 1;
};
/// The place of a rank in each group.
struct CutPlaces {
  CutPlace dense{}, expert{};
  CutPlace owner{};  // the part of the routed experts that the rank has
  CutPlace of(ReduceGroup group) const { return group == ReduceGroup::dense ? dense : expert; }
  /// Whether the rank has this expert. The number of experts must be a multiple of the number of
  /// ranks that share them out.
  bool has(const ExpertPlace& one) const {
    return one.index * owner.count / one.count == owner.index || one.count == 1;
  }
};

/// Rows [row, row + rows) and columns [column, column + columns) of a matrix. A vector has one
/// column.
struct GlobalBlock {
  std::int64_t row = 0, rows = 0, column = 0, columns = 1;
  bool repeated = false;  // a lower part has it too; that part counts and saves it
  std::int64_t elements() const { return rows * columns; }
  bool operator==(const GlobalBlock&) const = default;
};

/// Returns the blocks of a part, in the order of the rank's tensor, where each block is dense: one
/// per segment if rows are cut, otherwise one; none for a part that is all padding. Padding comes
/// after the blocks. ErrorCode::config if a segment does not divide into that many parts of whole
/// units. `name` begins the error message.
Result<std::vector<GlobalBlock>> blocks_of(const std::string& name, const Shape& shape,
                                           const std::vector<Segment>& segments,
                                           const CutRule& rule, CutPlace place);

/// The shape of a rank's tensor.
Shape local_shape(const Shape& shape, const std::vector<Segment>& segments, const CutRule& rule,
                  CutPlace place);

/// Whether this segment's units are replicated on runs of parts if there are `parts` parts.
bool in_runs(const Segment& segment, int parts);
/// Elements of the blocks that no lower part has.
std::int64_t own_elements(const std::vector<GlobalBlock>& blocks);

}  // namespace sortie::trainer
