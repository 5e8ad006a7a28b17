// Layout: this rank's position in the parallel layout of a run, and the groups that it communicates
// in.
#pragma once

#include <memory>
#include <optional>

#include "common/config/schema.h"
#include "trainer/nn/cut.h"
#include "trainer/nn/shares.h"
#include "trainer/parallel/context_group.h"
#include "trainer/parallel/counting.h"
#include "trainer/parallel/expert_group.h"
#include "trainer/parallel/mesh.h"
#include "trainer/parallel/tensor_group.h"

namespace sortie::trainer {

class Layout {
 public:
  /// Layout of the ranks of `world`. `topology` must be valid for them, see config::resolve_batch()
  /// (checked). Collective over `world` unless there is data parallelism only. `world` must outlive
  /// it.
  Layout(const config::TopologyConfig& topology, Communicator& world);
  /// Layout of one rank for planning: its groups transfer nothing and count what they would send.
  Layout(const config::TopologyConfig& topology, int rank, int world_size);

  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;

  const Mesh& mesh() const { return mesh_; }
  int coordinate(Axis axis) const { return mesh_.coordinate(world().rank(), axis); }
  int size(Axis axis) const { return mesh_.size(axis); }

  Communicator& world() const { return *world_; }
  /// Ranks that share the work of each layer.
  Communicator& tensor() const { return groups_ ? *groups_->tensor : *alone_; }
  /// The same group as the layers see it; nullptr if every rank has whole layers.
  const TensorGroup* tensor_group() const { return tensor_group_ ? &*tensor_group_ : nullptr; }
  /// Ranks that share the tokens of each sequence.
  Communicator& context() const { return groups_ ? *groups_->context : *alone_; }
  /// The same group as attention sees it; nullptr if every rank has whole sequences.
  const ContextGroup* context_group() const { return context_group_ ? &*context_group_ : nullptr; }
  /// The pipeline stages of one model, in order.
  Communicator& pipeline() const { return groups_ ? *groups_->pipeline : *alone_; }
  /// Ranks that hold the same parameters, except for routed experts if experts_apart(). Each of
  /// them trains on different samples, or different parts of samples.
  Communicator& replicas() const { return groups_ ? *groups_->replicas : *world_; }
  /// Ranks that together hold one model.
  Communicator& model() const { return groups_ ? *groups_->model : *alone_; }

  /// Whether routed experts are distributed by other groups than the tensor-parallel ones. Their
  /// gradients are then summed over other ranks than those of dense parameters.
  bool experts_apart() const {
    return size(Axis::expert) > 1 || size(Axis::expert_tensor) != size(Axis::tensor);
  }
  /// Ranks that hold the same routed experts.
  Communicator& expert_replicas() const {
    return experts_apart() ? *groups_->expert_data : replicas();
  }
  /// The ranks among which experts are divided, as the layers see them; nullptr unless
  /// experts_apart().
  const ExpertGroup* expert_group() const { return expert_group_ ? &*expert_group_ : nullptr; }

  /// Whether every rank holds the whole model.
  bool only_data() const { return model().size() == 1 && !experts_apart(); }
  /// Which part of a cut parameter this rank holds.
  CutPlaces places() const;
  /// Whether this rank reports results such as the loss for its tokens: true for the first rank of
  /// the tensor-parallel group of the last stage. The other ranks that work on the same tokens
  /// report zero, so that sums over all ranks count each token once.
  bool speaks() const {
    return coordinate(Axis::tensor) == 0 && coordinate(Axis::pipeline) == size(Axis::pipeline) - 1;
  }
  /// Bytes that the rank would have sent so far; only for planning.
  const SentBytes& sent() const { return sent_; }

 private:
  Mesh mesh_;
  SentBytes sent_;
  std::unique_ptr<Communicator> planned_;  // the world when planning
  Communicator* world_;
  std::unique_ptr<Communicator> alone_;
  std::optional<MeshGroups> groups_;
  std::optional<TensorGroup> tensor_group_;
  std::optional<ContextGroup> context_group_;
  std::optional<ExpertGroup> expert_group_;
  void make_views(const config::TopologyConfig& topology);
};

/// Returns which share of the optimizer's state this rank keeps among the ranks that hold the same
/// parameters, and whether weights and gradients are sharded too. It keeps everything if
/// topology.parameter_sharding is "none".
ShareRules share_rules(const config::JobConfig& job, const Layout& layout);

}  // namespace sortie::trainer
