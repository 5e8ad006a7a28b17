// The groups of ranks that communicate with each other, along the axes of the mesh of a run.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/config/mesh.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

using config::Axis;
using config::Mesh;
using config::MeshSizes;

/// The communicators of one rank, by split of the world's; a group along axes of size 1 is this
/// rank alone. Their names are those of the axes.
struct MeshGroups {
  /// Called by all ranks of `world`, whose size is the mesh's. `world` outlives the groups.
  MeshGroups(const Mesh& mesh, Communicator& world);
  /// Of a rank, with groups of another making: given their ranks, upwards.
  using Make = std::function<std::unique_ptr<Communicator>(std::vector<int> ranks, std::string)>;
  MeshGroups(const Mesh& mesh, int rank, const Make& make);

  std::unique_ptr<Communicator> tensor, context, data, pipeline;
  std::unique_ptr<Communicator> expert_tensor, expert, expert_data;
  /// Ranks that hold the same dense parameters: their gradients are summed (context and data).
  std::unique_ptr<Communicator> replicas;
  /// Ranks that hold one model together: norms are summed over it (tensor and pipeline).
  std::unique_ptr<Communicator> model;
};

}  // namespace sortie::trainer
