// Gathers the weights that other replicas have updated, in buckets, while the next forward pass
// already runs.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "trainer/nn/parameter_store.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// For a store with a sharded optimizer; no-op for other stores. The store calls it before the
/// values of a parameter are used.
class WeightGatherer {
 public:
  /// All arguments must outlive it. The communicators have one rank per share. `experts` is for
  /// routed experts in a separate section of the store.
  WeightGatherer(ParameterStore& store, Communicator& replicas, Communicator* experts = nullptr);
  /// Waits for gathers in flight, unless the stack is being unwound. Ignores CommunicatorError.
  ~WeightGatherer();
  WeightGatherer(const WeightGatherer&) = delete;
  WeightGatherer& operator=(const WeightGatherer&) = delete;

  /// Begins to gather a bucket once the current stream reaches this point; this rank's share has
  /// its new values then. Collective over the replicas. No gather of the bucket may be in flight
  /// (checked).
  void start(std::size_t bucket);
  /// Begins to gather all buckets, in the order in which a forward pass uses them.
  void start_all();
  /// For captured work that uses values (RepeatedWork): while `capturing()`, the wait for a bucket
  /// is passed to `between` at the first use of the bucket, whether or not it is in flight, so that
  /// the wait is performed at this point every time the work is repeated.
  void set_between(std::function<bool()> capturing,
                   std::function<void(std::function<void()> act)> between) {
    capturing_ = std::move(capturing);
    between_ = std::move(between);
  }
  /// Call at the start of a pass that may be captured.
  void begin_pass() { given_.assign(handles_.size(), false); }
  /// Makes progress; cheap. Called between ops.
  void poll();
  /// Makes the current stream wait for all gathers: work that is added from now on sees all values.
  void finish();

  /// Buckets that are in flight or not known to be complete. For tests.
  std::size_t open_buckets() const { return open_; }

 private:
  void await(const Parameter* parameter);
  void await_bucket(std::size_t bucket);

  ParameterStore& store_;
  Communicator& replicas_;
  Communicator* experts_;
  std::vector<std::unique_ptr<CollectiveHandle>> handles_;  // by bucket; nullptr: nothing to do
  std::size_t open_ = 0;
  std::function<bool()> capturing_;
  std::function<void(std::function<void()>)> between_;
  std::vector<bool> given_;  // passed to `between` in this pass, by bucket
};

}  // namespace sortie::trainer
