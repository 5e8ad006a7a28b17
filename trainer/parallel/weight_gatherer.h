// Brings the weights that other replicas have updated, in buckets, while the next forward pass
// already runs.
#pragma once

#include <memory>
#include <vector>

#include "trainer/nn/parameter.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Of a store whose optimizer is sharded; of another one it does nothing. From its first gather on
/// the store asks it before the values of a parameter are used.
class WeightGatherer {
 public:
  /// All must outlive it. The communicators are those of the replicas, one rank per share;
  /// `experts`: of routed experts, where they are apart in the store.
  WeightGatherer(ParameterStore& store, Communicator& replicas, Communicator* experts = nullptr);
  /// Waits for what is on its way, unless a collective of this rank has failed.
  ~WeightGatherer();
  WeightGatherer(const WeightGatherer&) = delete;
  WeightGatherer& operator=(const WeightGatherer&) = delete;

  /// This rank's share of the bucket has its new values where the current stream is now. Collective
  /// over the replicas; nothing of the bucket may be on its way.
  void start(std::size_t bucket);
  /// All buckets, those that a forward pass uses first at the front.
  void start_all();
  /// Makes progress; cheap. Called between ops.
  void poll();
  /// What the current stream is given from now on finds all values.
  void finish();

  /// Buckets on their way, or not known to have come.
  std::size_t open_buckets() const { return open_; }

 private:
  void await(const Parameter* parameter);
  void await_bucket(std::size_t bucket);

  ParameterStore& store_;
  Communicator& replicas_;
  Communicator* experts_;
  std::vector<std::unique_ptr<CollectiveHandle>> handles_;  // by bucket; null = nothing to wait for
  std::size_t open_ = 0;
};

}  // namespace sortie::trainer
