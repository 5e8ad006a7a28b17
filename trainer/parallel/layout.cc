#include "trainer/parallel/layout.h"

#include <algorithm>

#include "common/base/check.h"

namespace sortie::trainer {
namespace {

Mesh mesh_of(const config::TopologyConfig& topology, int world_size) {
  auto mesh = Mesh::make(world_size, config::mesh_sizes(topology));
  SORTIE_CHECK(mesh.has_value(), "{}", mesh.error().message);
  return *std::move(mesh);
}

}  // namespace

Layout::Layout(const config::TopologyConfig& topology, Communicator& world)
    : mesh_(mesh_of(topology, world.size())), world_(&world), alone_(make_single_communicator()) {
  if (size(Axis::data) != world.size()) groups_.emplace(mesh_, world);
  if (size(Axis::tensor) > 1) tensor_group_.emplace(tensor(), topology.sequence_parallel);
  if (size(Axis::context) > 1) context_group_.emplace(context());
}

Layout::Layout(const config::TopologyConfig& topology, int rank, int world_size)
    : mesh_(mesh_of(topology, world_size)),
      planned_(make_counting_communicator(rank, world_size, "world", sent_)),
      world_(planned_.get()),
      alone_(make_single_communicator()) {
  if (size(Axis::data) == world_size) return;
  groups_.emplace(mesh_, rank, [this, rank](const std::vector<int>& ranks, std::string name) {
    const auto place = std::ranges::find(ranks, rank) - ranks.begin();
    return make_counting_communicator(static_cast<int>(place), static_cast<int>(ranks.size()),
                                      std::move(name), sent_);
  });
  if (size(Axis::tensor) > 1) tensor_group_.emplace(tensor(), topology.sequence_parallel);
  if (size(Axis::context) > 1) context_group_.emplace(context());
}

CutPlaces Layout::places() const {
  const auto along = [this](Axis axis) { return CutPlace{coordinate(axis), size(axis)}; };
  return {.dense = along(Axis::tensor), .expert = along(Axis::expert_tensor)};
}

ShareRule share_rule(const config::JobConfig& job, const Layout& layout) {
  const std::string& sharding = job.topology.parameter_sharding;
  if (sharding == "none") return {};
  return {layout.replicas().rank(), layout.replicas().size(), job.optimizer.allreduce_bucket_size,
          /*everything=*/sharding == "full"};
}

}  // namespace sortie::trainer
