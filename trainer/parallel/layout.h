// Layout: where this rank stands in the parallel layout of a run, and the groups that it
// communicates in.
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
  /// Of the world's ranks; config::resolve_batch() found nothing wrong with it (checked).
  /// Collective where a replica of the model is more than one rank. `world` outlives it.
  Layout(const config::TopologyConfig& topology, Communicator& world);
  /// Of a rank that is only planned: its groups carry nothing and count what would be sent.
  Layout(const config::TopologyConfig& topology, int rank, int world_size);

  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;

  const Mesh& mesh() const { return mesh_; }
  int coordinate(Axis axis) const { return mesh_.coordinate(world().rank(), axis); }
  int size(Axis axis) const { return mesh_.size(axis); }

  Communicator& world() const { return *world_; }
  /// Ranks that share the work of each layer.
  Communicator& tensor() const { return groups_ ? *groups_->tensor : *alone_; }
  /// The same as the layers see them; null where every rank has whole layers.
  const TensorGroup* tensor_group() const { return tensor_group_ ? &*tensor_group_ : nullptr; }
  /// Ranks that share the tokens of each sequence.
  Communicator& context() const { return groups_ ? *groups_->context : *alone_; }
  /// The same as attention sees them; null where every rank has whole sequences.
  const ContextGroup* context_group() const { return context_group_ ? &*context_group_ : nullptr; }
  /// The stages, in order.
  Communicator& pipeline() const { return groups_ ? *groups_->pipeline : *alone_; }
  /// Ranks that hold the same parameters, where experts are apart the same but for these; each of
  /// them trains on samples, or parts of them, of its own.
  Communicator& replicas() const { return groups_ ? *groups_->replicas : *world_; }
  /// Ranks that hold one model together.
  Communicator& model() const { return groups_ ? *groups_->model : *alone_; }

  /// Which routed experts a rank has is not decided by its place in the tensor-parallel group
  /// alone: experts' gradients are summed over ranks of their own.
  bool experts_apart() const {
    return size(Axis::expert) > 1 || size(Axis::expert_tensor) != size(Axis::tensor);
  }
  /// Ranks that hold the same routed experts.
  Communicator& expert_replicas() const {
    return experts_apart() ? *groups_->expert_data : replicas();
  }
  /// The ranks that share out experts, as the layers see them; null where they are not apart.
  const ExpertGroup* expert_group() const { return expert_group_ ? &*expert_group_ : nullptr; }

  /// Every rank holds the whole model.
  bool only_data() const { return model().size() == 1 && !experts_apart(); }
  /// Which part of a parameter that is cut this rank has.
  CutPlaces places() const;
  /// One rank of a replica says what its ranks know alike once the loss is there: the first of the
  /// tensor-parallel group of the last stage, for its own tokens.
  bool speaks() const {
    return coordinate(Axis::tensor) == 0 && coordinate(Axis::pipeline) == size(Axis::pipeline) - 1;
  }
  /// Of a planned rank: what it would have sent so far.
  const SentBytes& sent() const { return sent_; }

 private:
  Mesh mesh_;
  SentBytes sent_;
  std::unique_ptr<Communicator> planned_;  // the world of a rank that is only planned
  Communicator* world_;
  std::unique_ptr<Communicator> alone_;
  std::optional<MeshGroups> groups_;
  std::optional<TensorGroup> tensor_group_;
  std::optional<ContextGroup> context_group_;
  std::optional<ExpertGroup> expert_group_;
  void make_views(const config::TopologyConfig& topology);
};

/// Which share of the optimizer's state this rank keeps among the ranks that hold the same
/// parameters, and whether of weights and gradients, too; all, where topology.parameter_sharding is
/// "none".
ShareRules share_rules(const config::JobConfig& job, const Layout& layout);

}  // namespace sortie::trainer
