#include "common/config/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/base/check.h"

namespace sortie::config {
namespace {

bool is_dense(Axis axis) {
  return axis == Axis::tensor || axis == Axis::context || axis == Axis::data;
}
bool is_expert(Axis axis) {
  return axis == Axis::expert_tensor || axis == Axis::expert || axis == Axis::expert_data;
}

}  // namespace

std::string_view axis_name(Axis axis) {
  switch (axis) {
    case Axis::tensor:
      return "tensor";
    case Axis::context:
      return "context";
    case Axis::data:
      return "data";
    case Axis::pipeline:
      return "pipeline";
    case Axis::expert_tensor:
      return "expert tensor";
    case Axis::expert:
      return "expert";
    case Axis::expert_data:
      return "expert data";
  }
  return "?";
}

Result<Mesh> Mesh::make(int world_size, const MeshSizes& sizes) {
  const std::pair<const char*, int> given[] = {{"tensor", sizes.tensor},
                                               {"context", sizes.context},
                                               {"pipeline", sizes.pipeline},
                                               {"expert", sizes.expert},
                                               {"expert tensor", sizes.expert_tensor}};
  for (const auto& [name, size] : given)
    if (size < 1)
      return fail(ErrorCode::config,
                  fmt::format("mesh: the {} size is {}; it must be 1 or more", name, size));
  const auto left_of = [&](std::initializer_list<int> factors, std::string_view grid,
                           std::string_view formula) -> Result<int> {
    std::int64_t product = 1;
    bool divides = true;
    for (const int factor : factors) {
      product *= factor;
      divides = divides && product <= world_size;
      if (!divides) break;
    }
    if (divides && world_size % product == 0) return static_cast<int>(world_size / product);
    return fail(ErrorCode::config,
                fmt::format("mesh: {} ranks can not be cut into {} layers' {}; choose sizes whose "
                            "product divides the number of ranks",
                            world_size, grid, formula));
  };
  Mesh mesh;
  mesh.world_size_ = world_size;
  SORTIE_ASSIGN_OR_RETURN(const int data,
                          left_of({sizes.tensor, sizes.context, sizes.pipeline}, "dense",
                                  fmt::format("tensor {} x context {} x pipeline {}", sizes.tensor,
                                              sizes.context, sizes.pipeline)));
  SORTIE_ASSIGN_OR_RETURN(const int expert_data,
                          left_of({sizes.expert_tensor, sizes.expert, sizes.pipeline}, "expert",
                                  fmt::format("expert tensor {} x expert {} x pipeline {}",
                                              sizes.expert_tensor, sizes.expert, sizes.pipeline)));
  const auto lay = [&mesh](std::initializer_list<std::pair<Axis, int>> axes) {
    int stride = 1;
    for (const auto& [axis, size] : axes) {
      mesh.sizes_[static_cast<std::size_t>(axis)] = size;
      mesh.strides_[static_cast<std::size_t>(axis)] = stride;
      stride *= size;
    }
  };
  lay({{Axis::tensor, sizes.tensor},
       {Axis::context, sizes.context},
       {Axis::data, data},
       {Axis::pipeline, sizes.pipeline}});
  lay({{Axis::expert_tensor, sizes.expert_tensor},
       {Axis::expert, sizes.expert},
       {Axis::expert_data, expert_data},
       {Axis::pipeline, sizes.pipeline}});
  return mesh;
}

int Mesh::coordinate(int rank, Axis axis) const {
  SORTIE_CHECK(rank >= 0 && rank < world_size_, "rank {} of {}", rank, world_size_);
  return rank / stride(axis) % size(axis);
}

int Mesh::neighbour(int rank, Axis axis, int steps) const {
  const int at = coordinate(rank, axis);
  const int to = ((at + steps) % size(axis) + size(axis)) % size(axis);
  return rank + (to - at) * stride(axis);
}

std::vector<int> Mesh::group_of(int rank, std::initializer_list<Axis> axes) const {
  SORTIE_CHECK(std::ranges::none_of(axes, is_dense) || std::ranges::none_of(axes, is_expert),
               "axes of two grids");
  std::vector<int> ranks = {rank};
  for (const Axis axis : axes) {
    std::vector<int> more;
    for (const int one : ranks)
      for (int step = 0; step < size(axis); ++step) more.push_back(neighbour(one, axis, step));
    ranks = std::move(more);
  }
  std::ranges::sort(ranks);
  return ranks;
}

MeshSizes mesh_sizes(const TopologyConfig& topology, std::int64_t world_size) {
  MeshSizes sizes;
  sizes.tensor = static_cast<int>(topology.tensor_parallel_size);
  sizes.context = static_cast<int>(topology.context_parallel_size);
  sizes.pipeline = static_cast<int>(topology.pipeline_parallel_size);
  sizes.expert = static_cast<int>(topology.expert_parallel_size);
  sizes.expert_tensor = static_cast<int>(expert_tensor_size(topology, world_size));
  return sizes;
}

std::int64_t expert_tensor_size(const TopologyConfig& topology, std::int64_t world_size) {
  if (topology.expert_tensor_parallel_size != 0) return topology.expert_tensor_parallel_size;
  const std::int64_t of_stage = world_size / topology.pipeline_parallel_size;
  const std::int64_t tensor = topology.tensor_parallel_size;
  return of_stage % (tensor * topology.expert_parallel_size) == 0 ? tensor : 1;
}

bool cuts_model(const TopologyConfig& topology) {
  return topology.tensor_parallel_size > 1 || topology.pipeline_parallel_size > 1 ||
         topology.expert_parallel_size > 1;
}

std::string layout_text(const TopologyConfig& topology) {
  std::vector<std::string> parts;
  if (topology.tensor_parallel_size > 1)
    parts.push_back(fmt::format("tensor {}", topology.tensor_parallel_size));
  if (topology.sequence_parallel) parts.emplace_back("sequence");
  if (topology.context_parallel_size > 1)
    parts.push_back(fmt::format("context {}", topology.context_parallel_size));
  if (topology.pipeline_parallel_size > 1)
    parts.push_back(fmt::format("pipeline {}", topology.pipeline_parallel_size));
  if (topology.pipeline_interleave > 1)
    parts.push_back(fmt::format("interleaved {}", topology.pipeline_interleave));
  if (has_zero_bubble(topology)) parts.emplace_back("zero bubble");
  if (!topology.pipeline_stage_layers.empty())
    parts.push_back(fmt::format("layers {}", fmt::join(topology.pipeline_stage_layers, "+")));
  if (topology.expert_parallel_size > 1)
    parts.push_back(fmt::format("experts {}", topology.expert_parallel_size));
  if (topology.expert_tensor_parallel_size > 0)
    parts.push_back(fmt::format("expert tensor {}", topology.expert_tensor_parallel_size));
  if (topology.parameter_sharding == "optimizer") parts.emplace_back("sharded optimizer");
  if (topology.parameter_sharding == "full") parts.emplace_back("sharded weights");
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace sortie::config
