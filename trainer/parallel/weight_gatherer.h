// Brings the weights that other replicas have updated, in buckets, while the next forward pass
// already runs.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "trainer/nn/parameter_store.h"
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
  /// Whoever captures work that uses values (RepeatedWork): while `capturing()`, the wait for a
  /// bucket is given to `between` where the bucket is used first, whether it is on its way or not,
  /// to be done there each time the work is.
  void set_between(std::function<bool()> capturing,
                   std::function<void(std::function<void()> act)> between) {
    capturing_ = std::move(capturing);
    between_ = std::move(between);
  }
  /// A pass begins, which may be captured.
  void begin_pass() { given_.assign(handles_.size(), false); }
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
  std::function<bool()> capturing_;
  std::function<void(std::function<void()>)> between_;
  std::vector<bool> given_;  // to `between`, of the pass, by bucket
};

}  // namespace sortie::trainer
