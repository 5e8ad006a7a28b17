#include "trainer/parallel/mesh.h"

#include <fmt/format.h>

#include <algorithm>

namespace sortie::trainer {
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

MeshGroups::MeshGroups(const Mesh& mesh, Communicator& world)
    : MeshGroups(mesh, world.rank(), [&world](const std::vector<int>& ranks, std::string name) {
        // The lowest rank of a group is its color; ranks keep their order.
        return world.split(ranks.front(), world.rank(), std::move(name));
      }) {
  SORTIE_CHECK(mesh.world_size() == world.size(), "a mesh of {} over {} ranks", mesh.world_size(),
               world.size());
}

MeshGroups::MeshGroups(const Mesh& mesh, int rank, const Make& make) {
  const auto group = [&](std::initializer_list<Axis> axes, std::string name) {
    return make(mesh.group_of(rank, axes), std::move(name));
  };
  const auto along = [&](Axis axis) { return group({axis}, std::string(axis_name(axis))); };
  tensor = along(Axis::tensor);
  context = along(Axis::context);
  data = along(Axis::data);
  pipeline = along(Axis::pipeline);
  expert_tensor = along(Axis::expert_tensor);
  expert = along(Axis::expert);
  expert_data = along(Axis::expert_data);
  replicas = group({Axis::context, Axis::data}, "replicas");
  model = group({Axis::tensor, Axis::pipeline}, "model");
}

}  // namespace sortie::trainer
