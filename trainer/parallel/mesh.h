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

/// The communicators of one rank, split from the world's. A group along axes of size 1 is this rank
/// alone. Their names are those of the axes.
struct MeshGroups {
  /// Collective over `world`, whose size must be that of the mesh (checked). `world` must outlive
  /// the groups.
  MeshGroups(const Mesh& mesh, Communicator& world);
  /// Creates the groups of `rank` with `make`, which gets the ranks of a group in ascending order
  /// and its name.
  using Make = std::function<std::unique_ptr<Communicator>(std::vector<int> ranks, std::string)>;
  MeshGroups(const Mesh& mesh, int rank, const Make& make);

  std::unique_ptr<Communicator> tensor, context, data, pipeline;
  std::unique_ptr<Communicator> expert_tensor, expert, expert_data;
  /// Ranks that hold the same dense parameters (context and data): gradients are summed over it.
  std::unique_ptr<Communicator> replicas;
  /// Ranks that together hold one model (tensor and pipeline): norms are summed over it.
  std::unique_ptr<Communicator> model;
};

}  // namespace sortie::trainer
