// Mesh: where each rank stands in the parallel layouts of a run.
//
// Two grids lie over one world, each exactly the whole of it. Dense layers: tensor x context x data
// x pipeline. Expert layers: expert_tensor x expert x expert_data x pipeline, where expert_tensor *
// expert * expert_data = tensor * context * data. The first axis is the fastest (Megatron's order
// tp-cp-ep-dp-pp), so that ranks which exchange most are neighbours, on one host where it is large
// enough:  rank = t + T (c + C (d + D p)) = et + ET (e + E (ed + ED p)).
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

/// Sizes of the axes that a job chooses; what is left of the world is data and expert_data.
struct MeshSizes {
  int tensor = 1, context = 1, pipeline = 1;
  int expert = 1, expert_tensor = 1;
};

/// The sizes that [topology] asks for on so many ranks.
MeshSizes mesh_sizes(const TopologyConfig& topology, std::int64_t world_size);
/// topology.expert_tensor_parallel_size, or what it is where it is not set: the size of a
/// tensor-parallel group where groups of that size can share out the experts, else 1.
std::int64_t expert_tensor_size(const TopologyConfig& topology, std::int64_t world_size);
/// Whether ranks hold the parts of one model, so that no rank has all of it.
bool cuts_model(const TopologyConfig& topology);
/// Whether the stages of its pipeline compute gradients of weights when they would wait.
inline bool has_zero_bubble(const TopologyConfig& topology) {
  return topology.pipeline_schedule == "zero_bubble";
}
/// "tensor 2, sequence, pipeline 4, sharded optimizer"; empty where every rank has the whole model.
std::string layout_text(const TopologyConfig& topology);

class Mesh {
 public:
  /// ErrorCode::config when a size is below 1 or the sizes do not divide the world.
  static Result<Mesh> make(int world_size, const MeshSizes& sizes);

  int world_size() const { return world_size_; }
  int size(Axis axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  /// This rank's place along an axis.
  int coordinate(int rank, Axis axis) const;
  /// The ranks that differ from `rank` at most along `axes`, itself among them, upwards. The axes
  /// are of one grid (checked).
  std::vector<int> group_of(int rank, std::initializer_list<Axis> axes) const;
  /// The rank that `steps` along an axis lead to, around its end: the next pipeline stage, the next
  /// rank of a ring.
  int neighbour(int rank, Axis axis, int steps) const;

 private:
  Mesh() = default;
  int stride(Axis axis) const { return strides_[static_cast<std::size_t>(axis)]; }
  int world_size_ = 1;
  std::array<int, kAxes> sizes_{}, strides_{};
};

}  // namespace sortie::config
