#include "trainer/parallel/mesh.h"

#include "common/base/check.h"

namespace sortie::trainer {

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
