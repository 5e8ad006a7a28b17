#include "trainer/parallel/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/base/check.h"

namespace sortie::trainer {
namespace {

Mesh mesh_of(const config::TopologyConfig& topology, int world_size) {
  auto mesh = Mesh::make(world_size, mesh_sizes(topology));
  SORTIE_CHECK(mesh.has_value(), "{}", mesh.error().message);
  return *std::move(mesh);
}

}  // namespace

MeshSizes mesh_sizes(const config::TopologyConfig& topology) {
  MeshSizes sizes;
  sizes.tensor = static_cast<int>(topology.tensor_parallel_size);
  sizes.pipeline = static_cast<int>(topology.pipeline_parallel_size);
  sizes.expert_tensor = sizes.tensor;  // experts are cut as the other layers are
  return sizes;
}

std::string layout_text(const config::TopologyConfig& topology) {
  std::vector<std::string> parts;
  if (topology.tensor_parallel_size > 1)
    parts.push_back(fmt::format("tensor {}", topology.tensor_parallel_size));
  if (topology.sequence_parallel) parts.emplace_back("sequence");
  if (topology.pipeline_parallel_size > 1)
    parts.push_back(fmt::format("pipeline {}", topology.pipeline_parallel_size));
  if (topology.pipeline_interleave > 1)
    parts.push_back(fmt::format("interleaved {}", topology.pipeline_interleave));
  if (topology.parameter_sharding == "optimizer") parts.emplace_back("sharded optimizer");
  return fmt::format("{}", fmt::join(parts, ", "));
}

Layout::Layout(const config::TopologyConfig& topology, Communicator& world)
    : mesh_(mesh_of(topology, world.size())), world_(&world), alone_(make_single_communicator()) {
  if (size(Axis::data) != world.size()) groups_.emplace(mesh_, world);
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
}

CutPlaces Layout::places() const {
  const auto along = [this](Axis axis) { return CutPlace{coordinate(axis), size(axis)}; };
  return {.dense = along(Axis::tensor), .expert = along(Axis::expert_tensor)};
}

ShareRule share_rule(const config::JobConfig& job, const Layout& layout) {
  if (job.topology.parameter_sharding != "optimizer") return {};
  return {layout.replicas().rank(), layout.replicas().size(), job.optimizer.allreduce_bucket_size};
}

}  // namespace sortie::trainer
