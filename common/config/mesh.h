// Mesh: the position of each rank in the parallel layouts of a run.
//
// Two grids cover the same world. Dense layers use tensor x context x data x pipeline. Expert
// layers use expert_tensor x expert x expert_data x pipeline, where expert_tensor * expert *
// expert_data = tensor * context * data. The first axis varies fastest (Megatron's order
// tp-cp-ep-dp-pp), so that the ranks which communicate most are neighbours, on one host if it has
// enough slots:
//   rank = t + T (c + C (d + D p)) = et + ET (e + E (ed + ED p))
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"

namespace sortie::config {

enum class Axis : std::uint8_t {
  tensor,
  context,
  data,
  pipeline,
  expert_tensor,
  expert,
  expert_data,
};
inline constexpr std::size_t kAxes = 7;
std::string_view axis_name(Axis axis);  // "tensor", "expert data"

/// Sizes of the axes that a job sets. The sizes of data and expert_data follow from the world size.
struct MeshSizes {
  int tensor = 1, context = 1, pipeline = 1;
  int expert = 1, expert_tensor = 1;
};

/// The sizes that [topology] sets for this world size.
MeshSizes mesh_sizes(const TopologyConfig& topology, std::int64_t world_size);
/// topology.expert_tensor_parallel_size. If that is not set: tensor_parallel_size if the ranks of a
/// stage are a multiple of it times expert_parallel_size, else 1.
std::int64_t expert_tensor_size(const TopologyConfig& topology, std::int64_t world_size);
/// Whether the model is split over ranks, so that no rank holds all of it.
bool cuts_model(const TopologyConfig& topology);
/// Whether pipeline stages compute weight gradients in the time in which they would be idle.
inline bool has_zero_bubble(const TopologyConfig& topology) {
  return topology.pipeline_schedule == "zero_bubble";
}
/// "tensor 2, sequence, pipeline 4, sharded optimizer"; empty for plain data parallelism.
std::string layout_text(const TopologyConfig& topology);

class Mesh {
 public:
  /// Fails with ErrorCode::config if a size is below 1 or the sizes do not divide the world size.
  static Result<Mesh> make(int world_size, const MeshSizes& sizes);

  int world_size() const { return world_size_; }
  int size(Axis axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  /// Index of this rank along an axis.
  int coordinate(int rank, Axis axis) const;
  /// The ranks that differ from `rank` only along `axes`, including `rank`, in ascending order. All
  /// axes must be of one grid (checked).
  std::vector<int> group_of(int rank, std::initializer_list<Axis> axes) const;
  /// The rank that is `steps` further along an axis, with wrap-around, e.g. the next pipeline stage
  /// or the next rank of a ring.
  int neighbour(int rank, Axis axis, int steps) const;

 private:
  Mesh() = default;
  int stride(Axis axis) const { return strides_[static_cast<std::size_t>(axis)]; }
  int world_size_ = 1;
  std::array<int, kAxes> sizes_{}, strides_{};
};

}  // namespace sortie::config
