#include "trainer/parallel/layout.h"

#include <algorithm>

#include "common/base/check.h"

namespace sortie::trainer {
namespace {

Mesh mesh_of(const config::TopologyConfig& topology, int world_size) {
  auto mesh = Mesh::make(world_size, config::mesh_sizes(topology, world_size));
  SORTIE_CHECK(mesh.has_value(), "{}", mesh.error().message);
  return *std::move(mesh);
}

}  // namespace

Layout::Layout(const config::TopologyConfig& topology, Communicator& world)
    : mesh_(mesh_of(topology, world.size())), world_(&world), alone_(make_single_communicator()) {
  if (size(Axis::data) != world.size() || experts_apart()) groups_.emplace(mesh_, world);
  make_views(topology);
}

Layout::Layout(const config::TopologyConfig& topology, int rank, int world_size)
    : mesh_(mesh_of(topology, world_size)),
      planned_(make_counting_communicator(rank, world_size, "world", sent_)),
      world_(planned_.get()),
      alone_(make_single_communicator()) {
  if (size(Axis::data) == world_size && !experts_apart()) return;
  groups_.emplace(mesh_, rank, [this, rank](const std::vector<int>& ranks, std::string name) {
    const auto place = std::ranges::find(ranks, rank) - ranks.begin();
    return make_counting_communicator(static_cast<int>(place), static_cast<int>(ranks.size()),
                                      std::move(name), sent_);
  });
  make_views(topology);
}

void Layout::make_views(const config::TopologyConfig& topology) {
  if (size(Axis::tensor) > 1) tensor_group_.emplace(tensor(), topology.sequence_parallel);
  if (size(Axis::context) > 1) context_group_.emplace(context());
  if (!experts_apart()) return;
  const int shared = size(Axis::expert_tensor);  // it divides the tensor size (rule G6)
  expert_group_.emplace(*groups_->expert, coordinate(Axis::tensor) / shared,
                        size(Axis::tensor) / shared);
}

CutPlaces Layout::places() const {
  const auto along = [this](Axis axis) { return CutPlace{coordinate(axis), size(axis)}; };
  return {.dense = along(Axis::tensor),
          .expert = along(Axis::expert_tensor),
          .owner = along(Axis::expert)};
}

ShareRules share_rules(const config::JobConfig& job, const Layout& layout) {
  const std::string& sharding = job.topology.parameter_sharding;
  const auto among = [&](const Communicator& group) {
    if (sharding == "none") return ShareRule();
    return ShareRule{group.rank(), group.size(), job.optimizer.allreduce_bucket_size,
                     /*everything=*/sharding == "full"};
  };
  ShareRules rules{.dense = among(layout.replicas())};
  if (!layout.experts_apart()) return rules;
  rules.expert_ranks = layout.expert_replicas().size();
  rules.experts = among(layout.expert_replicas());
  return rules;
}

}  // namespace sortie::trainer
